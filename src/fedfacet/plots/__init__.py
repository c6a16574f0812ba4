"""Pictures of runs, partitions and heterogeneity."""

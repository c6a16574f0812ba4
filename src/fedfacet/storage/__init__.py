"""How what a run leaves is written, verified and read: checkpoints, tables, what clients keep."""

"""What watches a run without changing it."""

"""Data sets as batches of (x, y, a), in memory as uint8."""

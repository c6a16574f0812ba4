"""Methods with two halves: what clients do and what the server does, side by side."""

"""The thesis' chapter 3, client selection: its table of methods."""

"""What belongs to one paper: its tables as printed, its figures."""

"""What a run is from outside: its folder, its lock, its saved state, stopping, resuming, and doing a round again."""

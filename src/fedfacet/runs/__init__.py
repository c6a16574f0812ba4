"""What a run is from outside: its folder, its lock, stopping, going on, and doing a round of it again."""

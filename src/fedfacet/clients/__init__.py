"""Everything that runs where the data lives."""

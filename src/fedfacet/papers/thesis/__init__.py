"""The thesis on client selection."""

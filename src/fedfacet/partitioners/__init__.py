"""Who owns which sample."""

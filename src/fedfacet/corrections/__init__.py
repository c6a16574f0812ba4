"""What restrains client drift."""

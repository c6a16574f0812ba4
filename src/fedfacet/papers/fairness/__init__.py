"""The thesis' chapter 6, group fairness: its table and its federations."""

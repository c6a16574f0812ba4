"""Pure functions of (logits, batch)."""

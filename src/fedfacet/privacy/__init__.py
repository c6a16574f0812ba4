"""Noise that hides samples or clients in models, and what may be asked of clients."""

"""Who runs the clients."""

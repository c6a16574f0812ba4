"""What a server may ask a client."""

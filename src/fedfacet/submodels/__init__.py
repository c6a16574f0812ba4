"""Which part of the model a client is sent."""

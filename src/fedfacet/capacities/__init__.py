"""How large a part of the model each client is able to train."""

"""What a client does in its training so that single samples leave no trace."""

"""What happens to an update before it leaves the client."""

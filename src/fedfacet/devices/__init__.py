"""What clients run on: how fast, how far from the server, with how much energy, and when they are on-line."""

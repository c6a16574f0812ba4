"""One federation over real sites: the server sends messages, and each site answers them from its own folder."""

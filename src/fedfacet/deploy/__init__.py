"""One federation over real sites: the server sends letters, and each site answers them from its own folder."""

"""Who is able to take part, and how a client's round may end."""

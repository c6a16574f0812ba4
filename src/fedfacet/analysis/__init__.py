"""From run folders and federations to tables."""

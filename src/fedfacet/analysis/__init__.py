"""From run folders and federations to tables and plots."""

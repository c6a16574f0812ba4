"""Membership inference on finished runs: who is attacked, with what, and how well it goes."""

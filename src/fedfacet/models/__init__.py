"""Plain networks with features(x) and head; no Lightning."""

"""Plain networks with features(x) and head; no Lightning. Arguments that are out of range raise ``ValueError``."""

"""FedLD (MICCAI 2024)."""

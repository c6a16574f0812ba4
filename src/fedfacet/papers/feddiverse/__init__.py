"""FedDiverse (arXiv:2504.11216)."""

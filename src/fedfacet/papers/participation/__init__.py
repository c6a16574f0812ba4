"""Federated Learning Beyond Uniform Participation."""

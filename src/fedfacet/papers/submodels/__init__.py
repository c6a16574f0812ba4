"""Model-agnostic federated learning and membership inference: Németh et al., IEEE Access 2025 (the thesis, chapter 4)."""

"""Data sets that users bring along."""

OWN_DATA = frozenset({"csv", "hf", "image_folder", "npz"})
"""Data sets of no recipe: the one whose other settings a run of them has says nothing of them."""

"""Describe a federation before any training: ``python src/describe.py partition=NAME [key=value] ...``; see ``--help``."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("describe")

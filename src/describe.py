"""Describe a federation before any training: ``python src/describe.py partition=NAME [key=value] ...``; see ``--help``."""

from fedfacet.commands.describe import main
from fedfacet.entry import enter

if __name__ == "__main__":
    enter(main)

"""Describe a federation before any training: ``python src/describe.py partition=NAME [key=value] ...``; see ``--help``."""

import sys

from fedfacet.commands.describe import main

if __name__ == "__main__":
    sys.exit(main())

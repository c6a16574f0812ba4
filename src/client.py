"""A site of a federation: ``python src/client.py check|verify|pilot KEY=VALUE ...``; see ``--help``."""

import sys

from fedfacet.commands.client import main

if __name__ == "__main__":
    sys.exit(main())

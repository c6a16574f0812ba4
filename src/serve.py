"""Train a federation of real sites: ``python src/serve.py card=FILE roster=FILE [key=value] ...``; see ``--help``."""

import sys

from fedfacet.commands.serve import main

if __name__ == "__main__":
    sys.exit(main())

"""Search for settings: ``python src/tune.py KEY=interval(A,B) GROUP=choice(A,B) [key=value] ...``; see ``--help``."""

import sys

from fedfacet.commands.tune import main

if __name__ == "__main__":
    sys.exit(main())

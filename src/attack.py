"""Attack finished runs: ``python src/attack.py run=DIR [attack=[NAME,...]] [key=value] ...``; see ``--help``."""

import sys

from fedfacet.commands.attack import main

if __name__ == "__main__":
    sys.exit(main())

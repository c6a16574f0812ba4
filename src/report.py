"""Run folders in, a table out: ``python src/report.py RUNS... --rows selector --columns experiment``, or a paper's layout."""

import sys

from fedfacet.commands.report import main

if __name__ == "__main__":
    sys.exit(main())

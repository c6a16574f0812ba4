"""Run folders in, a table out: ``python src/report.py RUNS... --rows selector --columns experiment``, or a paper's layout."""

from fedfacet.commands.report import main
from fedfacet.entry import enter

if __name__ == "__main__":
    enter(main)

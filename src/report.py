"""Run folders in, a table out: ``python src/report.py RUNS... --rows selector --columns experiment``, or a paper's layout."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("report")

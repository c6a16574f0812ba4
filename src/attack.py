"""Attack finished runs: ``python src/attack.py run=DIR [attack=[NAME,...]] [key=value] ...``; see ``--help``."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("attack")

"""A site of a federation: ``python src/client.py check|verify|pilot KEY=VALUE ...``; see ``--help``."""

from fedfacet.commands.client import main
from fedfacet.entry import enter

if __name__ == "__main__":
    enter(main, tells=False)

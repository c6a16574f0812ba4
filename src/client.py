"""A site of a federation: ``python src/client.py check|verify|pilot KEY=VALUE ...``; see ``--help``."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("client", tells=False)

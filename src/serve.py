"""Train a federation of real sites: ``python src/serve.py card=FILE roster=FILE [key=value] ...``; see ``--help``."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("serve", tells=False)

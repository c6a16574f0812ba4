"""Search for settings: ``python src/tune.py KEY=interval(A,B) GROUP=choice(A,B) [key=value] ...``; see ``--help``."""

from fedfacet.entry import enter

if __name__ == "__main__":
    enter("tune", tells=False)

"""The commands that the scripts in ``src/`` and the installed ``fedfacet`` run."""

"""The page of the taxonomy of client selection, made from what ``describe.py selectors`` says.

``PYTHONPATH=src python docs/make_taxonomy.py > results/taxonomy.md`` renews the page.
"""

import sys

from fedfacet.commands import describe_selectors
from fedfacet.commands.output import markdown_tables

HEAD = """# Do the thesis' selection methods run here?

**Answer.** Yes, all 20 rows of table 4 run here (no interval: a description, with costs of n = 1 run a selector).
Six rows do not select clients, such as DDaBA, which is an aggregator. To settle costs at your scale, you need more
than these ten rounds of twelve clients.

<!-- Made by `python docs/make_taxonomy.py > results/taxonomy.md`; do not edit it by hand. -->

What every selector requires, asks and costs, and where each row of the thesis' table 4 lives here.
[docs/taxonomy.md](../docs/taxonomy.md) tells how to read it.
"""

SECTIONS = {
    "The thesis' table 4": ("table=thesis",),
    "Cards": (),
    "What selecting costs": ("cost=measured", "rounds=10"),
}


def section(title: str) -> str:
    """Return a section: the command, and what it says."""
    options = SECTIONS[title]
    output = describe_selectors.run([*options, "output=markdown"])
    command = " ".join(["python src/describe.py selectors", *options, "output=markdown"])
    return f"## {title}\n\n```bash\n{command}\n```\n\n{markdown_tables(output.tables, output.remarks)}"


def taxonomy_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *map(section, SECTIONS)])


if __name__ == "__main__":
    sys.stdout.write(taxonomy_page())

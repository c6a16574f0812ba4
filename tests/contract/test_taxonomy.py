"""A selector's card says what its ledger says, and the page of the taxonomy is current."""

import functools
import importlib.util
from pathlib import Path

import pytest

from fedfacet.commands.describe_selectors import all_cards
from fedfacet.commands.selector_costs import measure
from fedfacet.papers.selection.table4 import load_table4

ROOT = Path(__file__).parents[2]
CARDS = all_cards()
measured = functools.cache(functools.partial(measure, rounds=2))
KINDS = {
    "loss": {"loss"},
    "|D|": {"size", "label_counts", "joint_counts"},
    "time": {"resources", "bid"},
    "energy": {"resources", "bid"},
    "centroids": {"centroids"},
    "heterogeneity triplet": {"triplet"},
    "interaction matrix": {"joint_counts"},
    "label histogram": {"label_counts"},
    "probe norm": {"norm"},
    "smoothness": {"norm"},
}
"""Words of cards -> the kinds of answers that carry them; what travels with an update is not asked for."""

MODEL_FLOATS = 776
"""Of the model that costs are measured with."""

WITH_THE_UPDATE = {"θ", "compressed update"}
WITHOUT_A_QUESTION = {("oort", "time"), ("flame", "time"), ("pow_d", "|D|"), ("probe_fairness", "|D|")}
"""The server sees when updates arrive; pow-d asks for sizes if there are fewer candidates than clients; updates tell them."""

TERMINATIONS = {"-", "fixed rounds", "accuracy reached", "limited energy", "limited reward", "early stopping"}


@pytest.mark.parametrize("name", [name for name, card in CARDS.items() if card.group == "selector"])
def test_a_card_says_what_the_ledger_says(name):
    card, cost = CARDS[name], measured(name)
    asked = set(cost.disclosed)
    assert asked <= set(card.discloses), "it asks for what its yaml does not name"
    for word in card.taxonomy.shared_information:
        if word in WITH_THE_UPDATE or (name, word) in WITHOUT_A_QUESTION:
            continue
        assert KINDS[word] & asked, f"its card says {word}, and nobody was asked for that"
    carried = set().union(*(KINDS.get(word, set()) for word in card.taxonomy.shared_information))
    assert asked <= carried | {"size"}, "clients tell what its card does not"
    assert (cost.server_samples > 0) == ("server data" in card.needs)
    assert set(card.taxonomy.termination_condition.split(", ")) <= TERMINATIONS
    letters = card.taxonomy.client_characteristics
    remembers = cost.state_bytes if "S" not in letters else cost.state_bytes + cost.answer_bytes
    assert bool(remembers) == ("S" in letters), "whoever goes without S keeps no state, and whoever needs S keeps something"
    assert "D" in letters or not asked, "whoever goes without D asks nobody"


def test_costs_of_closed_form():
    """Equal work whatever the draw: nobody asked, everybody asked once, and what LAG's server keeps of every client."""
    uniform, everybody, lag = map(measured, ("uniform", "all", "lag"))
    assert (uniform.floats_up, uniform.floats_down, uniform.disclosed) == (0, 0, {})
    assert (uniform.state_bytes, uniform.aggregator_bytes, uniform.answer_bytes) == (0, 0, 0)
    assert (everybody.clients, everybody.samples_asked) == (12, 0)
    assert lag.aggregator_bytes >= 12 * MODEL_FLOATS * 4, "a gradient of each"
    sizes = measured("size_weighted")
    assert (sizes.disclosed, sizes.answer_bytes) == ({"size": 12 / 2}, 12 * 8)


def test_every_row_of_the_thesis_is_here_and_says_the_same():
    """Or the row says why not."""
    rows = load_table4()
    assert len(rows) == 20
    for row in rows:
        card = CARDS.get(row.here[0].removeprefix("selector="))
        assert card is not None, f"{row.name}: {row.here[0]} is not there"
        for option in row.here:
            group, _, name = option.partition("=")
            assert (ROOT / "conf" / group / f"{name}.yaml").is_file(), option
        assert row.differences(card.taxonomy).keys() == row.differs.keys(), row.name


@pytest.fixture(scope="module")
def page():
    """Return what makes the page."""
    spec = importlib.util.spec_from_file_location("make_taxonomy", ROOT / "docs" / "make_taxonomy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current_but_for_what_must_be_run(page):
    committed = (ROOT / "results" / "taxonomy.md").read_text()
    assert committed.startswith(page.HEAD)
    for title in list(page.SECTIONS)[:2]:
        assert page.section(title) in committed, "make it anew, as docs/make_taxonomy.py says"


@pytest.mark.slow
def test_the_page_is_current(page):
    assert page.taxonomy_page() == (ROOT / "results" / "taxonomy.md").read_text()

import json
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedfacet.analysis.description import describe_feasibility, describe_federation, simulate_selection
from fedfacet.build import build, load_data
from fedfacet.clients.queries.base import Query
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.config import compose_job, make
from fedfacet.errors import ConfigError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.methods.feddiverse import FedDiverseSelector
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.uniform import UniformSelector

CONF = Path(__file__).parents[2] / "conf"


def matrices_of(partition):
    return instantiate(OmegaConf.load(CONF / "partition" / f"{partition}.yaml"), _convert_="all").matrices


def shares(selector, partition, rounds=500, cohort_size=9):
    selection = simulate_selection(selector, matrices_of(partition), rounds=rounds, cohort_size=cohort_size, seed=0)
    return [100 * selection["share"][kind] for kind in ("CI", "AI", "SC")], selection


def feddiverse(**options):
    return FedDiverseSelector(heterogeneity=TrueHeterogeneity(), **options)


def test_a_federation_by_hand():
    description = describe_federation([InteractionMatrix([[9, 1], [1, 9]]), InteractionMatrix([[10, 0], [0, 0]])])
    correlation = 1 + (0.9 * np.log(0.9) + 0.1 * np.log(0.1)) / np.log(2)
    assert list(description) == ["num_clients", "global", "client_mean", "class_distances", "clients"]
    assert description["num_clients"] == 2
    assert description["client_mean"] == pytest.approx(
        {"class_imbalance": 0.5, "attribute_imbalance": 0.5, "spurious_correlation": correlation / 2}
    )
    first, second = description["clients"]
    assert first == {
        "id": 0,
        "counts": [[9, 1], [1, 9]],
        "class_imbalance": 0.0,
        "attribute_imbalance": 0.0,
        "spurious_correlation": pytest.approx(correlation),
        "type": "SC",
    }
    assert (second["id"], second["class_imbalance"], second["attribute_imbalance"], second["type"]) == (1, 1.0, 1.0, "AI")
    assert json.loads(json.dumps(description, allow_nan=False)) == description


@pytest.mark.parametrize(
    ("partition", "pooled", "mean"),
    [
        ("gsc", (0, 0, 0.163), (0.089, 0.089, 0.354)),
        ("gai", (0.0055, 0.441, 0.052), (0.201, 0.497, 0.119)),
        ("waterbirds_dist", (0.218, 0.175, 0.670), (0.262, 0.256, 0.761)),
        ("spawrious4", (0, 0, 0.374), (0.022, 0.044, 0.330)),
    ],
)
def test_the_papers_six_measures(partition, pooled, mean):
    description = describe_federation(matrices_of(partition))
    assert list(description["global"].values()) == pytest.approx(pooled, abs=6e-4)
    assert list(description["client_mean"].values()) == pytest.approx(mean, abs=6e-4)


# The shares of FedDiverse's appendix F, and what else follows from its rules with known triplets.
@pytest.mark.parametrize("partition", ["gsc", "gci", "spawrious4"])
def test_feddiverse_takes_a_third_of_each_pure_type(partition):
    assert shares(feddiverse(), partition, rounds=100)[0] == pytest.approx([100 / 3] * 3)


def test_feddiverse_takes_a_third_of_each_pure_type_among_100_clients():
    assert shares(feddiverse(), "gci_100", rounds=100, cohort_size=12)[0] == pytest.approx([100 / 3] * 3)


def test_feddiverse_takes_all_three_class_imbalanced_clients_of_waterbirds_in_every_round():
    share, selection = shares(feddiverse(), "waterbirds_dist", rounds=200)
    assert share == pytest.approx([100 / 3, 200 / 9, 400 / 9], abs=0.05)
    assert selection["rounds_with_every_client_of_type"] == {"CI": 1.0, "AI": 1.0, "SC": 0.0}


@pytest.mark.parametrize(
    ("partition", "options", "expected"),
    [
        ("gai", {}, (24, 54, 22)),
        ("gsc", {"orthogonal": "signed"}, (30, 26, 45)),
        ("gsc", {"orthogonal": "signed", "rotation": "round"}, (30, 26, 44)),
        ("gai", {"orthogonal": "signed"}, (32, 48, 19)),
    ],
)
def test_shares_of_the_other_variants(partition, options, expected):
    assert shares(feddiverse(**options), partition, rounds=1000)[0] == pytest.approx(expected, abs=1.5)


def test_uniform_takes_every_type_as_often_as_it_occurs():
    share, selection = shares(UniformSelector(), "gsc")
    assert share == pytest.approx([100 / 6, 100 / 6, 200 / 3], abs=1)
    assert selection["per_client"] == pytest.approx([9 / 24] * 24, abs=0.08)
    assert sum(selection["per_client"]) == pytest.approx(9)


def test_round_robin_observes_the_rounds():
    _, selection = shares(RoundRobinSelector(), "gsc", rounds=7)
    assert {round(7 * part) for part in selection["per_client"]} == {2, 3}


def test_pretraining_is_run_but_not_counted():
    seen = []

    class Watching(FedDiverseSelector):
        def observe(self, server, result, updates, rng):
            seen.append((result.round, len(result.cohort)))
            return server

    selector = Watching(heterogeneity=TrueHeterogeneity(), pretraining_rounds=3)
    selection = simulate_selection(selector, matrices_of("gsc"), rounds=2, cohort_size=6, seed=0)
    assert seen == [(1, 24), (2, 24), (3, 24), (4, 6), (5, 6)]
    assert sum(selection["per_client"]) == 6


def test_the_simulation_takes_whom_a_training_run_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = ("federation.rounds=4", "federation.cohort_size=5", "local.unit=steps", "local.amount=1")
    config, _ = compose_job("train", ["heterogeneity='true'", "seed=3", "callbacks=[evaluate]", *size])
    federation = build(config, tmp_path)
    federation.fit()
    selection = simulate_selection(feddiverse(), load_data(config).matrices, rounds=3, cohort_size=5, seed=3)
    trained = np.array(federation.state.participation_counts.tolist()) - 1  # all took part in the round of pre-training
    np.testing.assert_allclose(3 * np.array(selection["per_client"]), trained)


def test_types_that_occur_and_types_that_do_not():
    even, skewed = InteractionMatrix([[5, 5], [5, 5]]), InteractionMatrix([[9, 9], [1, 1]])
    selection = simulate_selection(AllSelector(), [even, skewed, skewed], rounds=2, cohort_size=1, seed=0)
    assert selection["share"] == pytest.approx({"CI": 2 / 3, "AI": 0, "SC": 0, "none": 1 / 3})
    assert selection["rounds_with_every_client_of_type"] == {"CI": 1.0, "AI": None, "SC": None, "none": 1.0}
    assert selection["per_client"] == [1.0, 1.0, 1.0]


def test_a_selector_that_learns_from_updates_is_refused():
    """There are none without training, so that it would appear to choose uniformly."""

    class Learning(UniformSelector):
        def needs_updates(self, server):
            return True

    with pytest.raises(ConfigError, match="but Learning learns from the clients' updates: simulate another selector"):
        simulate_selection(Learning(), matrices_of("gsc"), rounds=1, cohort_size=9, seed=0)


def test_a_selector_that_learns_from_losses_is_refused():
    class Greedy(UniformSelector):
        def observe(self, server, result, updates, rng):
            return {"loss": [receipt.loss_sum / max(receipt.num_seen, 1) for receipt in result.receipts]}

    with pytest.raises(ConfigError, match="but Greedy learns from the clients' losses: simulate another selector"):
        simulate_selection(Greedy(), matrices_of("gsc"), rounds=2, cohort_size=9, seed=0)


def test_a_question_that_needs_training_is_refused():
    class LocalLoss(Query):
        name = "local_loss"
        needs_model = True

        def answer(self, context):
            raise AssertionError

    class Curious(ClientSelector):
        def select(self, server, context):
            context.ask(LocalLoss(), context.available)

    with pytest.raises(ConfigError, match=r"Curious.*'local_loss'"):
        simulate_selection(Curious(), matrices_of("gsc"), rounds=1, cohort_size=9, seed=0)


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"rounds": 0}, "`simulate.rounds`.*0"),
        ({"rounds": "many"}, "many"),
        ({"cohort_size": 25}, "24 clients.*25"),
        ({"seed": -1}, "-1"),
    ],
)
def test_impossible_numbers_are_refused(wrong, part):
    numbers = {"rounds": 10, "cohort_size": 9, "seed": 0} | wrong
    with pytest.raises(ValueError, match=part):
        simulate_selection(UniformSelector(), matrices_of("gsc"), **numbers)


def test_feasibility_of_the_digits():
    config, _ = compose_job("train", [])
    data = load_data(config)
    cells = describe_feasibility(data.dataset, data.matrices, data.val)
    assert [cell["wanted"] for cell in cells] == [352, 128, 128, 352]
    assert sum(cell["available"] for cell in cells) == len(data.dataset.train)
    assert sum(cell["validation"] for cell in cells) == len(data.val)
    assert (cells[1]["class"], cells[1]["attribute"]) == (data.dataset.class_names[0], data.dataset.attribute_names[1])


@pytest.mark.parametrize("name", ["fedrk", "diversity_score"])
def test_what_is_known_without_training_is_answered_as_the_clients_do(name, tmp_path, monkeypatch):
    """Matrices, histograms and sizes: the simulated selection is that of a run, whose clients are asked for real."""
    monkeypatch.chdir(tmp_path)
    size = ("federation.rounds=3", "federation.cohort_size=5", "local.unit=steps", "local.amount=1")
    config, _ = compose_job("train", [f"selector={name}", "seed=3", "callbacks=[evaluate]", *size])
    federation = build(config, tmp_path)
    cohorts = [federation.run_round().cohort for _ in range(3)]
    skipped = config.selector.get("pretraining_rounds", 0)
    selection = simulate_selection(make(config.selector), load_data(config).matrices, rounds=3 - skipped, cohort_size=5, seed=3)
    chosen = np.bincount([client_id for cohort in cohorts[skipped:] for client_id in cohort], minlength=24)
    np.testing.assert_allclose((3 - skipped) * np.array(selection["per_client"]), chosen)

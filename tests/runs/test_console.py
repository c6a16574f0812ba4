import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet.analysis.notes import how_to_measure
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.federated import FederatedData
from fedfacet.data.held_out_clients import HeldOutClients
from fedfacet.metrics.group_counts import group_key
from fedfacet.runs.console import print_results
from fedfacet.types import Partition

NORMAL = ("normal", "pneumonia")


def data(classes, attributes, holdout=()):
    """Return data of one client with three test samples per group."""
    y, a = (np.repeat(labels.ravel(), 4) for labels in np.indices((len(classes), len(attributes))))
    test = np.flatnonzero(np.arange(len(y)) % 4)
    train = np.flatnonzero(np.arange(len(y)) % 4 == 0)
    images = InMemoryInputs(torch.zeros(len(y), 1, 2, 2, dtype=torch.uint8))
    dataset = Dataset(images, y, a, train, test, None, tuple(classes), tuple(attributes), (0.5,), (0.5,))
    return FederatedData(dataset, Partition((train,)), train[:0], holdout)


def measured(round, federated, **more):
    groups = federated.dataset.num_classes * federated.dataset.num_attributes
    keys = [f"test/acc_group/{group_key(group, federated.dataset.num_attributes)}" for group in range(groups)]
    average = {"test/acc": 0.75, "test/acc_adjusted": 0.7, "test/acc_worst_group": 0.25}
    return {"round": round, **average, **{key: group / 1000 for group, key in enumerate(keys)}, **more}


@pytest.fixture
def printed(tmp_path, capsys, monkeypatch):
    """Return a function that prints results and returns the lines, those of the table split into cells."""

    def printed(federated, last, best=None, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        (tmp_path / "metrics.csv").touch()
        print_results(json.loads(json.dumps({"final": last, "best": best})), federated, tmp_path)
        lines = capsys.readouterr().out.splitlines()
        return lines, [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if line.startswith("│")]

    return printed


def test_groups_have_both_names(printed):
    federated = data(("cat", "dog"), ("in", "out"))
    lines, rows = printed(federated, measured(9, federated), measured(4, federated))
    assert rows[:4] == [
        [name, "3", f"{number / 10:.2f}", f"{number / 10:.2f}"]
        for number, name in enumerate(("cat, in", "cat, out", "dog, in", "dog, out"))
    ]
    assert rows[-1] == ["worst group", "", "25.00", "25.00"]
    assert "group" in lines[2]


def test_without_an_attribute_there_are_classes(printed):
    federated = data(NORMAL, ("none",))
    lines, rows = printed(federated, measured(9, federated))
    assert [row[0] for row in rows] == [*NORMAL, "average", "adjusted average", "worst class"]
    assert "class" in lines[2]
    assert "group" not in "".join(lines[:-2])


@pytest.mark.parametrize(("classes", "shown"), [(12, True), (13, False), (100, False)])
def test_many_groups_are_left_to_a_file(printed, classes, shown):
    federated = data([f"c{number}" for number in range(classes)], ("none",))
    lines, rows = printed(federated, measured(9, federated))
    assert (["c11", "3", "1.10"] in rows) == shown
    assert len(rows) == 3 + 12 * shown
    assert (f"Each of the {classes} classes: metrics.csv" in [line.strip() for line in lines]) == (not shown)


def test_names_do_not_split_rows(printed):
    federated = data(("\n", " ", "[b]"), ("none",))
    _, rows = printed(federated, measured(9, federated))
    assert [row[0] for row in rows[:3]] == ["'\\n'", "' '", "[b]"]


def test_a_narrow_terminal_shows_a_block_per_row(printed):
    federated = data(("digit<5", "digit>=5"), ("red", "green"))
    lines, rows = printed(federated, measured(87, federated), measured(87, federated), width=60)
    assert rows == []
    at = lines.index("digit<5, green")
    assert lines[at : at + 5] == [
        *("digit<5, green", "  samples               3", "  last round (87)       0.10", "  best validation (87)  0.10"),
        "digit>=5, red",
    ]
    assert lines[lines.index("worst group") + 1].split() == ["last", "round", "(87)", "25.00"], "it has no samples of its own"


def test_all_that_the_folder_has_is_named(printed, tmp_path):
    for folder in ("wandb/offline-run-1", "tensorboard", "model", ".hydra"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("model/model.safetensors", "model/config.json", "privacy.csv"):
        (tmp_path / file).touch()
    federated = data(NORMAL, ("none",))
    lines, _ = printed(federated, measured(9, federated))
    named = [line.strip() for line in lines[lines.index(f"run folder  {tmp_path}") + 1 :]]
    assert named == ["metrics.csv", "model/model.safetensors", "privacy.csv", "tensorboard/", "wandb/"]


def test_clients_own_models_have_rows(printed):
    federated = data(NORMAL, ("none",), holdout=(np.arange(2),))
    own = {"personal_test/acc_mean": 0.9, "personal_test/acc_min": 0.8, "personal_test/acc_std": 0.05}
    held_out = {"personal_holdout/acc_mean": 0.95, "personal_holdout/acc_min": 0.85, "personal_holdout/num_clients": 1}
    best = measured(4, federated, **dict.fromkeys(own | held_out))  # a round that was not measured
    _, rows = printed(federated, measured(9, federated, **own, **held_out), best)
    assert rows[-4:] == [
        ["personal, mean", "6", "90.00", "-"],
        ["personal, worst client", "", "80.00", "-"],
        ["held out, mean", "2", "95.00", "-"],
        ["held out, worst client", "", "85.00", "-"],
    ]
    _, rows = printed(federated, measured(9, federated, **own))
    assert [row[0] for row in rows[-3:]] == ["worst class", "personal, mean", "personal, worst client"]


def test_clients_that_never_take_part_have_rows(printed):
    plain = data(NORMAL, ("none",), holdout=(np.arange(2),))
    never = HeldOutClients((1, 2), Partition((np.arange(2, 3),) * 2), (np.arange(3, 6), np.arange(6, 7)))
    federated = replace(plain, held_out_clients=never)
    own = {"personal_test/held_out_clients/acc_mean": 0.9, "personal_holdout/held_out_clients/acc_mean": 0.8}
    _, rows = printed(federated, measured(9, federated, **own))
    assert rows[-2:] == [["personal, new clients", "", "90.00"], ["held out, new clients", "4", "80.00"]]


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (
            "client_fairness/held_out_clients/gap",
            "client_fairness]` and `partition.local_holdout=0.2 partition.held_out_clients=0.2",
        ),
        ("client_fairness/acc_mean", "client_fairness]` and `partition.local_holdout=0.2"),
        ("personal_test/held_out_clients/acc_mean", "personal_evaluate]` and `partition.held_out_clients=0.2"),
        ("personal_test/acc_mean", "personal_evaluate]"),
    ],
)
def test_a_metric_says_what_has_a_run_measure_it(metric, options):
    assert how_to_measure(metric) == f"run them with `callbacks=[default,{options}`"

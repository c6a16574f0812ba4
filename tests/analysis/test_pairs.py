"""``fedfacet.compare`` and ``fedfacet.report`` say from Python what ``report.py`` says of the same runs."""

import numpy as np
import pytest
import torch
from torch import nn

import fedfacet
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.analysis.paired import paired_difference
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError, FedFacetError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of runs of two settings and three seeds, what ``fit`` returned of each, and of the first one in memory."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    x, y, a = draw.normal(size=(300, 5)), draw.integers(0, 2, 300), draw.integers(0, 2, 300)
    data = fedfacet.deal(fedfacet.dataset_from_arrays(x + y[:, None], y, a), fedfacet.IIDPartitioner(num_clients=6))

    def run(seed, momentum, where):
        torch.manual_seed(seed)
        return fedfacet.federate(
            data,
            nn.Linear(5, 2),
            aggregator=None if momentum is None else FedAvgM(momentum=momentum, server_lr=0.2),
            callbacks={"evaluate": Evaluate(data=data), "figures": Callback()},
            cohort_size=3,
            rounds=12,
            seed=seed,
            folder=where,
        ).fit()

    settings = {"a": None, "b": 0.5}
    kept = {name: [run(seed, momentum, folder / f"{name}{seed}") for seed in range(3)] for name, momentum in settings.items()}
    return folder, kept["a"], kept["b"], [run(seed, None, None) for seed in range(3)]


@pytest.mark.parametrize("at", ["last", "best", "tail"])
@pytest.mark.parametrize("metric", ["test/acc_worst_group", "test/loss"])
def test_a_comparison_is_that_of_the_report(at, metric, runs, capsys):
    folder, a, b, in_memory = runs
    ours = fedfacet.compare(a, b, metric=metric, at=at)
    asked = ["--compare", "fedavgm", "--rows", "aggregator", "--metric", metric, "--at", at, "--format", "csv"]
    assert main([str(folder), *asked]) == 0
    head, line = (row.split(",") for row in capsys.readouterr().out.splitlines())
    theirs = dict(zip(head, line, strict=True))
    found = ours.difference
    assert ours.seeds == (0, 1, 2)
    for name, value in {"difference": found.mean, "t_low": found.t_interval[0], "p_permutation": found.p_permutation}.items():
        assert float(theirs[name]) == pytest.approx(value, nan_ok=True)
    assert found == paired_difference(ours.a, ours.b)
    assert fedfacet.compare(in_memory, b, metric=metric, at=at) == ours, "without folders, too"


def test_what_may_be_compared(runs):
    folder, a, b, in_memory = runs
    whole = fedfacet.compare(a, b)
    assert fedfacet.compare([folder / f"a{seed}" for seed in range(3)], [fedfacet.load_run(one.folder) for one in b]) == whole
    left_out = fedfacet.compare(str(folder / "a0"), b)
    assert left_out.notes == ("Left out, as only one setting has them: seeds 1, 2.",)
    assert fedfacet.compare(in_memory[0], b[0]).a == whole.a[:1]


def test_one_pair_has_no_interval(runs):
    _, a, b, _ = runs
    first, second = repr(fedfacet.compare(a[0], b[0])).splitlines()
    assert first.startswith("test/acc_worst_group (last), a - b: ")
    assert first.endswith(" points, paired by seed 0.")
    assert second == "One pair has no interval: two seeds have one, and no difference of fewer than 6 is significant."


def test_few_seeds_cannot_decide_and_equal_runs_never_do(runs):
    _, a, b, in_memory = runs
    said = repr(fedfacet.compare(a, b, metric="test/loss"))
    assert "95 % interval [" in said
    assert "\nNot significant.\nWith 3 seeds no p-value is below 0.25.\nAbout " in said
    assert "No number of seeds would decide" in repr(fedfacet.compare(a, in_memory))


def test_faults_of_a_comparison(runs, tmp_path):
    _, a, b, _ = runs
    for faulty, told in (
        (lambda: fedfacet.compare(a, b, metric="test/ac"), "but got 'test/ac': use test/acc or"),
        (lambda: fedfacet.compare(a, b, at="end"), "Expected `at` to be"),
        (lambda: fedfacet.compare(a + a, b), "a has seed 0 twice"),
        (lambda: fedfacet.compare(a[0], b[1:]), "a has 0 and b has 1, 2"),
        (lambda: fedfacet.compare([], b), "got an empty list"),
        (lambda: fedfacet.compare(3, b), "but got int: give one of these"),
        (lambda: fedfacet.compare(tmp_path, b), "found no config.yaml there"),
    ):
        with pytest.raises((ConfigError, ValueError), match=told):
            faulty()


def test_a_report_is_that_of_the_command(runs, tmp_path, capsys):
    folder, a, b, in_memory = runs
    where = [str(one.folder) for one in (*a, *b)]
    for options, argv in (
        ({}, []),
        ({"rows": "aggregator", "compare": "fedavg"}, ["--rows", "aggregator", "--compare", "fedavg"]),
        ({"rows": "aggregator", "where": {"seed": 1}}, ["--rows", "aggregator", "--where", "seed=1"]),
    ):
        status = main([*where, *argv])
        printed = capsys.readouterr()
        if status:
            with pytest.raises(FedFacetError) as refused:
                fedfacet.report([*a, *b], **options)
            assert str(refused.value) in printed.err
        else:
            assert f"{fedfacet.report([*a, *b], **options)!r}\n" == printed.out + "\n"
    pages = tmp_path / "ours.html", tmp_path / "theirs.html"
    assert fedfacet.report(folder, html=pages[0]) == f"wrote {pages[0]}"
    assert main([str(folder), "--html", str(pages[1])]) == 0
    ours, theirs = (page.read_text().replace(str(page), "PAGE") for page in pages)
    assert ours == theirs
    for options, told in (
        ({"htlm": "a.html"}, "unrecognized arguments: --htlm"),
        ({"html": "a.txt"}, "a name that ends in .html"),
        ({"at": "end"}, "--at: invalid choice: 'end'"),
    ):
        with pytest.raises(ConfigError, match=told):
            fedfacet.report(a, **options)
    with pytest.raises(ConfigError, match="give `federate` a folder"):
        fedfacet.report(in_memory)

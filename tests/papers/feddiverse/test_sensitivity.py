"""The grid of FedDiverse's figure 4."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from omegaconf import OmegaConf

from fedfacet.analysis.runs import Run
from fedfacet.errors import ConfigError
from fedfacet.papers.feddiverse.sensitivity import METRIC, measure_sensitivity, plot_sensitivity

Q, BIAS, ATTRIBUTE = "heterogeneity.q", "heterogeneity.bias_steps", "heterogeneity.attribute_steps"
SWEEP = Path(__file__).parents[3] / "conf" / "sweep" / "sensitivity.yaml"
PAPER = {Q: (0.1, 0.3, 0.5, 0.7, 0.9), BIAS: (5, 25, 50, 75, 100), ATTRIBUTE: (5, 25, 50, 75, 100)}


def run(q, bias, attribute, error, seed=0, **choices):
    settings = {Q: q, BIAS: bias, ATTRIBUTE: attribute, "seed": seed}
    chosen = {"heterogeneity": "estimated", "dataset": "spawrious", "partition": "gsc"} | choices
    settings |= {f"choices.{group}": option for group, option in chosen.items()}
    measured = {"clients": 24, "distance_max": error, "distance_mean": error / 2, "correlation": {"class_imbalance": 1.0}}
    summary = {"status": "finished", "rounds": 1, "final": {"round": 1}, "best": None, "heterogeneity_error": measured}
    return Run(Path(f"{q}-{bias}-{attribute}-{seed}-{error}"), seed, settings, summary)


@pytest.fixture
def whole():
    """Two seeds of the whole grid, whose errors are known."""
    errors = np.random.default_rng(0).uniform(0.2, 0.9, (2, 5, 5, 5))
    places = list(itertools.product(*PAPER.values()))
    runs = [run(*place, error, seed) for seed in (0, 1) for place, error in zip(places, errors[seed].ravel(), strict=True)]
    return runs, errors.mean(axis=0)


def test_the_sweep_runs_through_the_papers_grid(whole):
    params = OmegaConf.to_container(OmegaConf.load(SWEEP), resolve=False)["hydra"]["sweeper"]["params"]
    assert {name: tuple(map(float, params[name].split(","))) for name in PAPER} == PAPER
    assert {name: tuple(values) for name, values in measure_sensitivity(whole[0]).axes.items()} == PAPER


def test_means_over_seeds_wherever_a_run_lies(whole):
    runs, means = whole
    sensitivity = measure_sensitivity(np.random.default_rng(1).permutation(np.array(runs, dtype=object)).tolist())
    np.testing.assert_allclose(sensitivity.means, means)
    place = np.unravel_index(means.argmin(), means.shape)
    assert tuple(sensitivity.best.values()) == tuple(values[index] for values, index in zip(PAPER.values(), place, strict=True))
    assert sensitivity.missing == 0
    assert f"{means.min():.4f} at heterogeneity.q={PAPER[Q][place[0]]:g}," in str(sensitivity)
    np.testing.assert_allclose(measure_sensitivity(runs, metric="heterogeneity_error/distance_mean").means, means / 2)


def test_missing_cells_further_values_and_runs_without_an_estimate():
    runs = [
        run(0.3, 50, 10, 0.4),
        run(0.3, 50, 25, 0.4),
        run(0.1, 5, 5, 0.5),
        run(0.3, 50, 10, 0.0, seed=1, heterogeneity="true"),
        Run(Path("running"), 0, {"choices.heterogeneity": "estimated"}, None),
    ]
    sensitivity = measure_sensitivity(runs)
    assert sensitivity.axes[ATTRIBUTE] == [5, 10, 25, 50, 75, 100]
    assert sensitivity.means.shape == (5, 5, 6)
    assert sensitivity.missing == 147
    assert np.isnan(sensitivity.means).sum() == 147
    assert str(sensitivity) == (
        f"smallest `{METRIC}` on spawrious gsc: 0.4000 at heterogeneity.q=0.3, heterogeneity.bias_steps=50, "
        "heterogeneity.attribute_steps=10 and at 1 more; missing are 147 of 150 cells"
    )


def test_runs_of_a_cell_that_differ_in_more_than_the_seed_are_told():
    runs = [run(0.3, 50, 25, 0.2), run(0.3, 50, 25, 0.8, seed=1, model="other")]
    assert str(measure_sensitivity(runs)).endswith("; cells average runs that differ in model")


def test_bad_input_is_told():
    with pytest.raises(ConfigError, match="none of 0 runs"):
        measure_sensitivity([])
    mixed = [run(0.3, 50, 25, 0.4), run(0.3, 50, 25, 0.4, dataset="digits")]
    with pytest.raises(ConfigError, match="digits gsc, spawrious gsc: choose one with --where"):
        measure_sensitivity(mixed)
    assert measure_sensitivity(mixed, where={"dataset": "digits"}).federation == "digits gsc"
    with pytest.raises(ConfigError, match="none of 1 runs has"):
        measure_sensitivity([run(0.3, 50, 25, float("nan"))])
    with pytest.raises(ConfigError, match="seed 0 twice"):
        measure_sensitivity([run(0.3, 50, 10, 0.4), run(0.3, 50, 10, 0.5, partition="gsc")])
    with pytest.raises(ConfigError, match=r"none of 2 runs has its values of them all: run sweep=sensitivity"):
        measure_sensitivity([run(0.3, 50, 10, 0.4), run(0.2, 50, 25, 0.5)])  # each is beside the grid


@pytest.mark.parametrize("left", [250, 3, 1])
def test_it_is_drawn(whole, tmp_path, left):
    """Whole, with holes, and with a single cell, which has no range."""
    path = tmp_path / "new" / "figure.png"
    plot_sensitivity(measure_sensitivity(whole[0][:left]), path)
    picture = imread(path)
    assert picture.shape[1] > 3 * picture.shape[0] > 900
    framed = np.abs(picture[..., :3] - np.array([0xD5, 0x5E, 0x00]) / 255).max(axis=2) < 0.02
    assert framed.sum() > 200, "the smallest stands out"
    assert [file.name for file in path.parent.iterdir()] == ["figure.png"]

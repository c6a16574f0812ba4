"""A sweeper other than Hydra's own, which draws what it tries: how many jobs there are is not what the command line has."""

import re

import pytest

PLUGIN = '''
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class Drawn(Sweeper):
    """Tries `n_trials` learning rates of its own."""

    def __init__(self, params, n_trials):
        self.n_trials = n_trials

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments):
        fixed = [one for one in arguments if not one.startswith("optimizer.lr=")]
        for number in range(self.n_trials or 3):
            self.launcher.launch([[*fixed, f"optimizer.lr={0.01 * (number + 1)}"]], initial_job_idx=number)


@dataclass
class Settings:
    _target_: str = "hydra_plugins.drawn.Drawn"
    params: Any = None
    n_trials: Any = 3


ConfigStore.instance().store(group="hydra/sweeper", name="drawn", node=Settings)
'''


SCRIPT = """
import runpy, sys

sys.path.insert(0, {plugins!r})
import hydra_plugins.drawn
from hydra.core.plugins import Plugins

Plugins.instance().register(hydra_plugins.drawn.Drawn)  # the process that forks this one has looked for plugins before
sys.argv[0] = {train!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def searched(train, checkout, tmp_path):
    def search(*overrides):
        (tmp_path / "plugins" / "hydra_plugins").mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugins" / "hydra_plugins" / "drawn.py").write_text(PLUGIN)
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(plugins=str(tmp_path / "plugins"), train=str(checkout / "src" / "train.py")))
        given = ("debug=smoke", "hydra/sweeper=drawn", "optimizer.lr=interval(0.01,0.3)", "~callbacks.figures", *overrides)
        return train(*given, "-m", script=script, fast=False)

    return search


@pytest.mark.parametrize(
    ("trials", "places"),
    [
        pytest.param("2", [r"1 of 2", r"2 of 2, about \d+ min left"], marks=pytest.mark.slow),
        pytest.param("null", ["1", "2", "3"], marks=pytest.mark.slow),
    ],
)
def test_a_job_says_of_how_many_it_is_where_the_sweeper_says_that(searched, trials, places):
    ended = searched(f"hydra.sweeper.n_trials={trials}")
    assert ended.status == 0, ended.err
    for said, place in zip(re.findall(r"^job (.+): ", ended.out, re.MULTILINE), places, strict=True):
        assert re.fullmatch(place, said)


def test_the_cells_are_those_that_were_drawn(searched):
    ended = searched("sweep=cells", "hydra.sweeper.n_trials=2", "federation.rounds=1")
    assert ended.status == 0, ended.err
    assert re.findall(r"\((\d of \d)", ended.out) == ["1 of 2", "2 of 2"]
    assert "2 of 2 cells are finished.\n" in ended.out
    assert "2 cells in" not in ended.out


@pytest.mark.slow
def test_several_workers_would_each_draw_for_themselves(searched):
    ended = searched("sweep=cells", "sweep.workers=2")
    assert ended.status == 2
    assert "Expected `sweep.workers=1`" in ended.err

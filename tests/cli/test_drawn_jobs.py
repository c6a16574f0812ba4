"""A sweeper other than Hydra's own, which draws what it tries: how many jobs there are is not what the command line has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "src" / "train.py"

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


@pytest.fixture
def searched(tmp_path):
    def search(*overrides):
        (tmp_path / "plugins" / "hydra_plugins").mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugins" / "hydra_plugins" / "drawn.py").write_text(PLUGIN)
        path = os.pathsep.join([str(tmp_path / "plugins"), str(TRAIN.parent)])
        given = ("debug=smoke", "hydra/sweeper=drawn", "optimizer.lr=interval(0.01,0.3)", "~callbacks.figures", *overrides)
        return subprocess.run(
            [sys.executable, str(TRAIN), *given, "-m"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return search


@pytest.mark.parametrize(
    ("trials", "places"),
    [
        ("3", [r"1 of 3", r"2 of 3, about \d+ min left", r"3 of 3, about \d+ min left"]),
        pytest.param("null", ["1", "2", "3"], marks=pytest.mark.slow),
    ],
)
def test_a_job_says_of_how_many_it_is_where_the_sweeper_says_that(searched, trials, places):
    ended = searched(f"hydra.sweeper.n_trials={trials}")
    assert ended.returncode == 0, ended.stderr
    for said, place in zip(re.findall(r"^job (.+): ", ended.stdout, re.MULTILINE), places, strict=True):
        assert re.fullmatch(place, said)


def test_the_cells_are_those_that_were_drawn(searched):
    ended = searched("sweep=cells")
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"\((\d of \d)", ended.stdout) == ["1 of 3", "2 of 3", "3 of 3"]
    assert "3 of 3 cells are finished.\n" in ended.stdout
    assert "2 cells in" not in ended.stdout


@pytest.mark.slow
def test_several_workers_would_each_draw_for_themselves(searched):
    ended = searched("sweep=cells", "sweep.workers=2")
    assert ended.returncode == 2
    assert "Expected `sweep.workers=1`" in ended.stderr

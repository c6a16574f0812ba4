"""Command lines by a grammar: each is refused in one sentence with status 2, or its run is built and would begin."""

import re
import sys

import hydra
import pytest
from omegaconf import DictConfig, ListConfig

from fedfacet.commands import train as command
from fedfacet.commands.train import run_command
from fedfacet.config import compose_job

pytestmark = pytest.mark.slow

VALUES = [
    "-1", "0", "1", "2", "0.5", "-0.0", "1e308", "1e-320", "nan", "inf", "-inf", "1000000000", "99999999999999999999999999",
    "true", "false", "null", "''", "x", "a b", "'a b'", "[]", "{}", "[1,2]", "[[1]]", "{a: 1}", "{_target_: os.system}", "???",
    "${seed}", "${nothing}", "${now:%Y}", "${oc.env:HOME}", "0x10", "1_000", "٣", "é", "\x07", "a=b", "a,b", "(", "]", "$(ls)",
    "../..", "/proc/nothing", "/dev/null", "x" * 300, "range(1,4)", "choice(1,2)", "torch.optim.SGD", "os.system", "int(3)",
    "sweep(1,2)", "\\", "#", "@", "[" * 60 + "]" * 60, "1e5", "1.0", "yes", "uniform", "9" * 400,
]  # fmt: skip
SIGNS = ["", "", "", "", "", "", "+", "++", "~"]
ODDITIES = [
    "", "=", "==", "x", "~", "+", "seed", "seed=", "=1", "-x", "--nothing", "-m", "--multirun", "--resolve", "--cfg", "--info",
    "--config-dir=/nowhere", "--config-name=x", "--package=x", "--config-path=x", "-cx", "@", "a@b=c", "a@b:c=d", "seed@x=1",
    "hydra.run.dir=x", "hydra/launcher=nothing", "hydra.job.chdir=true", "hydra.searchpath=[/nowhere]",
    "hydra.searchpath=['file:///nowhere']", "hydra.searchpath=['pkg://os']", "hydra=x", "defaults=[]", "_target_=x",
    "+_partial_=true", "seed=1 seed=2", "seed=range(1,1000000000)", "resume=.", "resume=/nowhere", "trust=os", "trust=[1]",
    "partition.clients=[]", "partition.clients=[{count: 1000000000, matrix: [[1,1],[1,1]]}]", "where_present={a.b: 1}",
    "sweep=table1", "debug=smoke", "method=fedld", "setting=local", "fidelity=nothing", "experiment=null", "callbacks=[]",
    "logger=[]", "callbacks=[default,default]", "logger=[csv,nothing]", "selector=[uniform]", "+selector=uniform",
    "~selector", "~experiment", "task=[1]", "hydra.job.env_set={A: B}", "+hydra.callbacks.x._target_=os.system",
    "seed=${oc.create:{_target_: os.system}}",
]  # fmt: skip
TRIALS = 75


def leaves(node, path=""):
    """Yield the paths of all settings, groups among them."""
    for key in node:
        full = f"{path}.{key}" if path else str(key)
        yield full
        if isinstance(value := node._get_node(key), DictConfig):
            yield from leaves(value, full)
        elif isinstance(value, ListConfig):
            yield f"{full}.0"


def override(draw, paths, groups):
    """One override, most of them of a setting that exists."""
    kind = draw.random()
    if kind < 0.15:
        return draw.choice(ODDITIES)
    if kind < 0.35:
        group = draw.choice(sorted(groups))
        return f"{draw.choice(SIGNS)}{group}={draw.choice([*groups[group], draw.choice(VALUES)])}"
    path = draw.choice(paths)
    if draw.random() < 0.05:
        at = draw.randrange(len(path))
        path = path[:at] + draw.choice("abcxyz._-") + path[at:]
    return f"{draw.choice(SIGNS)}{path}={draw.choice(VALUES)}"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Hydra's, of folders that are not there
@pytest.mark.parametrize("part", range(8))
def test_overrides(part, draw, attack, checkout, tmp_path, monkeypatch, capfd, files_of):
    config, _ = compose_job("train", ["~experiment", "callbacks=default", "selector=probe_fairness"])
    kept = {"wandb", "choices"}  # W&B would look for its server
    paths = [path for path in leaves(config) if path.partition(".")[0] not in kept and path != "paths.data_dir"]
    groups = {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml") if file.stem != "wandb")
        for folder in (checkout / "conf").iterdir()
        if folder.is_dir() and folder.name != "hydra"
    }

    def begun(*_, **__):
        sys.exit(77)

    monkeypatch.setattr(hydra, "main", lambda *_, **__: lambda task: begun)
    monkeypatch.setattr(command, "launch", begun)
    monkeypatch.chdir(tmp_path)
    for _ in range(TRIALS):
        given = [override(draw, paths, groups) for _ in range(draw.choice([1, 1, 2, 3]))]
        if draw.random() < 0.5:
            given = ["debug=smoke", *given]
        if draw.random() < 0.1:
            given.append("-m")
        monkeypatch.setattr(sys, "argv", ["train.py", *given])
        before = files_of(tmp_path)
        with attack(given) as came:
            status = 0
            try:
                run_command(lambda job: None)
            except SystemExit as stop:
                status = stop.code
            err = capfd.readouterr().err
            came({0: "shown", 2: "refused", 77: "begun"}[status])
            if status == 2:
                assert re.fullmatch(r"(error: Expected [^\n]+\n)|(usage: (.+\n)+.*error: [^\n]+\n)", err), err
            assert files_of(tmp_path) == before, "something was written"

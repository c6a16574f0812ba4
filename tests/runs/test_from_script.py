"""A federation of a script with a folder is a command's run: the same files, resumed as exactly, refused as clearly."""

import json
import signal
import sys
import threading
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

import fedfacet
from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.build import load_data
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.config import check_trusted
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, Interrupted
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.storage import checkpoint
from fedfacet.storage.lock import sole

SETTINGS = (
    "selector=feddiverse", "heterogeneity.bias_steps=3", "heterogeneity.attribute_steps=2",
    "aggregator=fedavgm", "aggregator.momentum=0.5", "aggregator.server_lr=1.0",
    "model.width=2", "model.hidden=4", "threads=1", "federation.rounds=3", "federation.cohort_size=5", "local.unit=steps",
    "local.amount=2", "local.batch_size=16", "optimizer.lr=0.05", "optimizer.weight_decay=0", "optimizer.momentum=0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_data(num_clients=6, shift=0.0):
    draw = np.random.default_rng(0)
    x, y, a = draw.normal(size=(300, 5)), draw.integers(0, 2, 300), draw.integers(0, 2, 300)
    return fedfacet.deal(
        fedfacet.dataset_from_arrays(x + y[:, None] + shift, y, a), fedfacet.IIDPartitioner(num_clients=num_clients)
    )


DATA = made_data()


@pytest.fixture
def federate(tmp_path):
    """Return a function that makes the same federation as ever, but for what is said."""

    def make(**others):
        torch.manual_seed(others.pop("weights", 0))
        net = others.pop("model", None) or nn.Linear(5, 2)
        callbacks = {"figures": Callback()} | (
            others.pop("callbacks", None) or {"evaluate": Evaluate(data=DATA)}
        )  # no pictures
        settings = {
            "callbacks": callbacks,
            "rounds": 4,
            "cohort_size": 3,
            "aggregator": FedAvgM(momentum=0.5, server_lr=1.0),
            "folder": tmp_path / "a",
        }
        return fedfacet.federate(others.pop("data", DATA), net, **(settings | others))

    return make


def of_model(folder):
    return json.loads((folder / "summary.json").read_text())["model_digest"]


def files_of(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_files_are_those_of_a_commands_run(tmp_path):
    """All files but those that say when, how or by which settings a run was made."""
    run = fedfacet.train(*SETTINGS, f"paths.output_dir={tmp_path / 'theirs'}")
    data = load_data(run.config)
    with rng.forked(0, "weights"):
        model = SmallCNN(num_classes=2, input_shape=data.dataset.input_shape, width=2, hidden=4)
    fedfacet.federate(
        data,
        model,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        local=fedfacet.LocalTraining(unit="steps", amount=2, batch_size=16),
        selector=fedfacet.FedDiverseSelector(heterogeneity=EstimatedHeterogeneity(bias_steps=3, attribute_steps=2)),
        aggregator=FedAvgM(momentum=0.5, server_lr=1.0),
        cohort_size=5,
        rounds=3,
        folder=tmp_path / "ours",
    ).fit()
    ours, theirs = files_of(tmp_path / "ours"), files_of(tmp_path / "theirs")
    assert theirs.keys() - ours.keys() == {".hydra/overrides.yaml"}, "of a command line, which a script has not"
    assert ours.keys() <= theirs.keys()
    same = {name for name in ours if ours[name] == theirs[name]}
    assert ours.keys() - same == {
        *("config.yaml", "model/config.json"),  # classes in the place of options
        *("checkpoints/last.ckpt", "checkpoints/previous.ckpt"),  # which have the settings too
        *("timing.csv", "summary.json", "train.log"),  # seconds
        "SHA256SUMS",
    }
    assert {"metrics.csv", "disclosures.csv", "heterogeneity.csv", "partition.json", "model/model.safetensors"} <= same
    a, b = (json.loads(files["summary.json"]) for files in (ours, theirs))
    assert {name for name in {*a, *b} if a.get(name) != b.get(name)} == {"seconds"}
    (a, _), (b, _) = (checkpoint.load(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("ours", "theirs"))
    assert state.digest(a.model) == state.digest(b.model)
    assert state.digest(a.aggregator["velocity"]) == state.digest(b.aggregator["velocity"])
    assert a.disclosures == b.disclosures


class Stop(Callback):
    """Ends the process, or asks for an end, after a round."""

    def __init__(self, round, how):
        self.after, self.act = round, how

    def on_state_complete(self, federation):
        if federation.state.round == self.after:
            self.act()


def interrupt():
    signal.raise_signal(signal.SIGINT)


def stopped(after=None, how=None):
    return {"evaluate": Evaluate(data=DATA), "stop": Stop(after, how)}


def test_ctrl_c_stops_and_the_same_script_resumes(federate, tmp_path, capsys):
    whole = federate(folder=tmp_path / "whole").fit()
    with pytest.raises(Interrupted):
        federate(callbacks=stopped(2, interrupt)).fit()
    assert "Stopped by SIGINT after round 2; run the script again to resume." in capsys.readouterr().err
    result = federate(callbacks=stopped(), weights=7).fit()
    assert of_model(tmp_path / "a") == of_model(tmp_path / "whole") == state.digest(result.model)
    assert (tmp_path / "a" / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
    assert result.metrics == whole.metrics
    before, again = files_of(tmp_path / "a"), federate(callbacks=stopped())
    assert again.fit().metrics == whole.metrics
    assert state.digest(again.state.model) == of_model(tmp_path / "a")
    assert f"The run in {tmp_path / 'a'} is complete: it ended after round 4." in capsys.readouterr().err
    after = files_of(tmp_path / "a")
    assert {name for name in before if before[name] != after[name]} == {"train.log"}, "nothing else is written again"
    assert federate(callbacks=stopped(), rounds=6).fit().round == 6, "more rounds are no other run"
    longer = federate(folder=tmp_path / "longer", rounds=6).fit()
    assert of_model(tmp_path / "a") == state.digest(longer.model)


SCRIPT = """
import os, signal, torch, numpy, fedfacet
torch.set_num_threads(1)
draw = numpy.random.default_rng(0)
x, y = draw.normal(size=(300, 5)), draw.integers(0, 2, 300)
data = fedfacet.deal(fedfacet.dataset_from_arrays(x, y), fedfacet.IIDPartitioner(num_clients=6))
class Kill(fedfacet.Callback):
    def on_client_end(self, round, position, expected, phase):
        if os.environ.get("KILL") == str(round) and position == 2:
            os.kill(os.getpid(), signal.SIGKILL)
torch.manual_seed(0)
callbacks = {"evaluate": fedfacet.Evaluate(data=data), "kill": Kill(), "figures": fedfacet.Callback()}
federation = fedfacet.federate(data, torch.nn.Linear(5, 2), callbacks=callbacks, cohort_size=3, rounds=4, folder="run")
federation.fit()
"""


def test_a_killed_script_resumes(tmp_path, start_script):
    for name, kills in {"killed": ("3", ""), "whole": ("",)}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT)
        for kill in kills:
            ended = start_script(folder, folder / "script.py", env={"KILL": kill}).result()
            assert ended.status == (-signal.SIGKILL if kill else 0), ended.err
    killed, whole = (tmp_path / name / "run" for name in ("killed", "whole"))
    assert of_model(killed) == of_model(whole)
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert ended.err.count("\nround ") == 2, "the first and the last, in a pipe"


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"aggregator": FedAvgM(momentum=0.9, server_lr=1.0)}, "`aggregator.momentum` was 0.5 and is now 0.9: bring it back"),
        ({"aggregator": FedAvg()}, "`aggregator` was 'fedavgm' and is now 'fedavg'"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.5)}, "`optimizer.lr` was 0.01 and is now 0.5"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5)}, "`optimizer.lr` was 0.01 and is now 0.5"),
        ({"local": fedfacet.LocalTraining(amount=2)}, "`local.amount` was 1 and is now 2"),
        ({"seed": 1}, "`seed` was 0 and is now 1"),
        ({"cohort_size": 2}, "`federation.cohort_size` was 3 and is now 2"),
        ({"rounds": 3}, "Expected `rounds` of 4 or more, as the run in"),
        ({"callbacks": {"evaluate": Evaluate(data=DATA, every_n_rounds=2)}}, "`callbacks.evaluate.every_n_rounds` was 1 and"),
        ({"model": nn.Sequential(nn.Linear(5, 2))}, "`model` was 'Linear' and is now 'Sequential'"),
        ({"model": nn.Linear(5, 2, bias=False)}, "its model has weight, bias instead of weight"),
        ({"data": made_data(shift=1.0)}, "a checkpoint of the data set with digest"),
        ({"data": made_data(num_clients=5)}, "`partition.num_clients` was 6 and is now 5"),
        ({"engine": VectorizedEngine(device="cpu")}, "an engine that is exact to the last bit"),
    ],
)
def test_what_differs_is_named_before_a_round(others, told, federate, tmp_path):
    federate().fit()
    before = files_of(tmp_path / "a")
    with pytest.raises(FedFacetError, match=told):
        federate(**others).fit()
    after = files_of(tmp_path / "a")
    assert {name for name in before if before[name] != after.get(name)} <= {"train.log"}


def test_folders_of_others_are_left_alone(federate, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds 'thesis.tex': choose another `folder`\.$"):
        federate(folder=tmp_path / "mine").fit()
    run = fedfacet.train("debug=smoke", "heterogeneity='true'", "threads=1", f"paths.output_dir={tmp_path / 'command'}")
    before = files_of(run.folder)
    with pytest.raises(ConfigError, match=r"holds a run of a command: choose another, or resume that run by `fedfacet\.load"):
        federate(folder=run.folder).fit()
    assert files_of(run.folder) == before
    (tmp_path / "a").mkdir()
    with sole(tmp_path / "a" / "train.log"), pytest.raises(ConfigError, match="another process is at"):
        federate().fit()
    for name in ("x" * 300, "a\0b", "mine/thesis.tex/a"):
        with pytest.raises(ConfigError, match=r"that can be (made|written to)"):
            federate(folder=tmp_path / name).fit()
    with pytest.raises(TypeError, match="Expected `folder` to name a folder, but got 3"):
        federate(folder=3)
    with pytest.raises(ConfigError, match="Expected `fit` of a federation with a folder, but got `run_round`"):
        federate().run_round()


def test_odd_arguments_are_described_and_resumed(federate, tmp_path):
    odd = {"stop": Odd("${oc.env:HOME}\n: {", {1: (2, float("nan")), "x.y": None}, range(1000), signal.SIGINT, lambda x: x)}
    for rounds in (2, 3):
        assert federate(callbacks={"evaluate": Evaluate(data=DATA), **odd}, rounds=rounds).fit().round == rounds
    config = fedfacet.load_run(tmp_path / "a").config.callbacks.stop
    assert (config.text, config.signal, config.table["x.y"]) == ("$ {oc.env:HOME}\n: {", "SIGINT", None)
    assert config.entries.startswith("1000 entries ")


class Odd(Callback):
    """Has arguments that no yaml has."""

    def __init__(self, text, table, entries, signal, function):
        self.text, self.table, self.entries, self._signal, self.function = text, table, entries, signal, function


def test_a_damaged_checkpoint_is_named_with_the_one_before(federate, tmp_path):
    whole = federate().fit()
    last = tmp_path / "a" / "checkpoints" / "last.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=r"remove .*last\.ckpt, and the run resumes from the one before"):
        federate().fit()
    last.unlink()
    assert state.digest(federate().fit().model) == state.digest(whole.model)
    assert last.read_bytes()[:100]


def test_what_commands_cannot_do_with_it_they_say(federate, tmp_path):
    federate().fit()
    run = fedfacet.load_run(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"a script made that of .* \(torch.nn.modules.linear.Linear\): make it yourself"):
        _ = run.model
    with pytest.raises(FedFacetError, match="run the script again that made it"):
        run.resume()
    with pytest.raises(CheckpointError, match="whose settings make its data and model again, but a script made that of"):
        check_trusted(checkpoint.load(tmp_path / "a" / "checkpoints" / "last.ckpt")[1], (), "it")


def test_a_thread_that_has_no_signals_runs_it(federate):
    results = []
    thread = threading.Thread(target=lambda: results.append(federate().fit().round))
    thread.start()
    thread.join()
    assert results == [4]


def test_the_history_is_there_with_and_without_a_folder(federate, tmp_path):
    kept, federation = federate().fit(), federate(folder=None)
    result = federation.fit()
    assert result.metrics == kept.metrics == federation.metrics == fedfacet.load_run(tmp_path / "a").metrics
    assert result.history.equals(kept.history)
    assert list(result.history.index) == [1, 2, 3, 4]
    assert fedfacet.load_run(tmp_path / "a").frame().equals(kept.history)
    assert repr(result).startswith("FitResult(4 rounds, seed 0, test/acc 0.")
    federation.restore(federate(folder=None).state)
    assert federation.metrics == [], "of no round that was taken back"


def test_without_pandas_one_sentence_tells_of_the_rows(federate, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = federate(folder=None, rounds=1).fit()
    assert len(result.metrics) == 1
    with pytest.raises(
        ConfigError, match=r"Expected the package pandas for a DataFrame \(`metrics` has the same rows as dicts\)"
    ):
        _ = result.history


class Module(L.LightningModule):
    """Has a learning rate."""

    def __init__(self, lr):
        super().__init__()
        self.network, self.lr = nn.Linear(5, 2), lr

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def test_a_module_is_known_by_its_arguments_and_its_optimizer(federate, tmp_path):
    federate(model=Module(0.1)).fit()
    config = fedfacet.load_run(tmp_path / "a").config
    assert (config.choices.objective, config.choices.optimizer, config.model.lr, config.optimizer.lr) == (
        "Module",
        "Adam",
        0.1,
        0.1,
    )
    with pytest.raises(CheckpointError, match=r"`model\.lr` was 0\.1 and is now 0\.2"):
        federate(model=Module(0.2)).fit()

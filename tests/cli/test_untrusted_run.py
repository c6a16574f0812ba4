"""A run folder from somebody else: nothing in it may run code that its user has not named."""

import io
import json
import os
import re
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import joblib
import pytest
import torch
from omegaconf import OmegaConf

from fedfacet import load_run
from fedfacet.build import build, rebuild, reload_data, settle
from fedfacet.commands import attack, describe, report
from fedfacet.config import compose_job, plain
from fedfacet.config.trust import (
    check_saved_overrides,
    check_trusted,
    needed_to_resume,
    trusted_by,
    without_downloads,
)
from fedfacet.cores import num_cores
from fedfacet.errors import CheckpointError, FedFacetError
from fedfacet.storage import checkpoint
from fedfacet.storage.client_memory import ClientMemory

DELETED = object()


class Payload:
    """Leaves a trace where it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.fixture(autouse=True)
def payload(tmp_path):
    """Whoever loads the file ``payload`` has run its code."""
    joblib.dump(Payload(tmp_path / "trace"), tmp_path / "payload")
    yield
    assert not (tmp_path / "trace").exists()


def test_the_payload_would_show(tmp_path):
    """Or the tests below could not fail."""
    joblib.load(tmp_path / "payload")
    assert (tmp_path / "trace").exists()
    (tmp_path / "trace").unlink()


@pytest.mark.parametrize(
    "override",
    [
        "+hydra.callbacks.x={_target_: joblib.load, filename: payload}",
        "+hydra.callbacks.x._target_=joblib.load",
        "+hydra.job.env_set.LD_PRELOAD=payload",
        "hydra.job.env_set={PATH: here}",
        "hydra/job_logging=theirs",
        "+evaluate@hydra.callbacks=evaluate",
        "hydra.searchpath=['file://theirs']",
        "engine._target_=joblib.load",
        "+where_present={engine._target_: joblib.load}",
        "+where_present={engine: {_target_: joblib.load, filename: payload}}",
        "+where_present={engine._target_@sequential: joblib.load}",
        "++engine={_target_: joblib.load, filename: payload}",
        "+callbacks.x={_target_: joblib.load, filename: payload}",
        "+selector.x={deep: [{_target_: joblib.load, filename: payload}]}",
        "engine._target_=fedfacet.commands.train.os.system",
        "dataset._target_=fedfacet.data.download.download",
        "optimizer._target_=torch.optim.optimizer.torch.hub.load",
        "engine._target_=${task}",
        "engine='${oc.create:{_target_: joblib.load, filename: payload}}'",
        "++engine=${oc.create:{_target_: joblib.load, filename: payload}}",
        "+callbacks.x=$\\{oc.create:\\{_target_\\: joblib.load\\}\\}",
        "task=${oc.env:HOME}",
    ],
)
def test_its_overrides_name_settings_only(refused, run, override):
    file = run / ".hydra" / "overrides.yaml"
    file.write_text(OmegaConf.to_yaml([*OmegaConf.load(file), override]))
    sentence = refused("resume=run", "federation.rounds=5")
    assert sentence.startswith("Expected run/.hydra/overrides.yaml to ")
    assert "but it has " in sentence or "but it names " in sentence or "but it makes " in sentence


@pytest.mark.parametrize(
    "content",
    ["", "a: b\n", "- [1]\n", "- 3\n", "&a [*a]\n", "- !!python/object/apply:os.getcwd []\n", "\0", "- ${oc.env:HOME}: 3\n"],
)
def test_its_overrides_are_a_list(refused, run, content):
    (run / ".hydra" / "overrides.yaml").write_text(content)
    assert "Expected run/.hydra/overrides.yaml to be as it was written, but " in refused("resume=run", "federation.rounds=5")


@pytest.mark.parametrize("where", ["engine", "callbacks.x", "dataset", "objective.x"])
def test_its_checkpoints_name_parts_of_ours_only(run, where, capsys):
    for file in (run / "checkpoints").glob("*.ckpt"):
        saved, config = checkpoint.load(file)
        changed = OmegaConf.create(config)
        OmegaConf.update(changed, where, {"_target_": "joblib.load", "filename": "payload"}, force_add=True)
        checkpoint.save(file, saved, OmegaConf.to_container(changed))
    assert describe.main(["decomposition=run"]) == 2
    assert "but it names 'joblib.load'" in capsys.readouterr().err
    assert report.main(["run", "--clients"]) == 2
    assert "but it names 'joblib.load'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("engine.choice", {"_target_": "joblib.load", "filename": "payload"}),
        ("engine.choice", {"engine": "sequential", "why": {"_target_": "joblib.load", "filename": "payload"}}),
        ("engine.choice", {"engine": "sequential", "why": "${oc.env:HOME}"}),
        ("engine.choice", {"engine": "workers", "workers": 1_000_000_000, "why": "it is fast"}),
        ("engine.choice", ["sequential"]),
        ("engine.choice", {"engine": "theirs", "why": "it is fast"}),
        ("engine.choice", {"engine": "workers", "why": "it is fast"}),
        ("engine", "sequential"),
        ("precision", "${oc.env:HOME}"),
        ("memory_format", "load"),
        ("threads", {"_target_": "joblib.load", "filename": "payload"}),
        ("threads", -3),
        ("compile", [1]),
    ],
)
def test_what_a_resume_takes_from_its_checkpoint_is_held_to_what_a_run_writes(run, refused, where, value):
    saved, config = checkpoint.load(run / "checkpoints" / "last.ckpt")
    if where == "engine.choice":
        config["engine"] = {"_target_": "fedfacet.engines.auto.AutoEngine", "allow_inexact": False, "device": "auto"} | {
            "choice": value
        }
        file = run / ".hydra" / "overrides.yaml"
        file.write_text(OmegaConf.to_yaml([*OmegaConf.load(file), "engine=auto"]))
    else:
        config[where] = value
    checkpoint.save(run / "checkpoints" / "last.ckpt", saved, config)
    assert f"`{where}`" in refused("resume=run", "federation.rounds=5", "threads=null")


@pytest.mark.parametrize("text", ["${oc.create:{_target_: joblib.load, filename: payload}}", "${task}"])
def test_nothing_in_its_checkpoints_is_made_when_it_is_read(run, text, capsys):
    """A resolved configuration has no interpolation; one of OmegaConf's makes parts of texts."""
    for file in (run / "checkpoints").glob("*.ckpt"):
        saved, config = checkpoint.load(file)
        checkpoint.save(file, saved, {**config, "partition": text})
    for command, arguments in ((describe, ["decomposition=run"]), (report, ["run", "--clients"])):
        assert command.main(arguments) == 2
        assert f"but it makes one of {text!r}" in capsys.readouterr().err


def test_so_does_its_model(run):
    file = run / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "_target_": "joblib.load"}))
    (run / "SHA256SUMS").unlink()  # or somebody lists what they have put there
    with pytest.raises(CheckpointError, match=r"but it names 'joblib\.load'"):
        _ = load_run(run).model


def test_folders_of_options_are_asked_for_again(run, refused, trained, tmp_path):
    own = tmp_path / "mine" / "selector" / "hers.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: fedfacet.selectors.uniform.UniformSelector\n")
    (tmp_path / "mine" / "mechanisms").mkdir()
    (tmp_path / "mine" / "mechanisms" / "idle.yaml").write_text("idle:\n  _target_: fedfacet.mechanism.Mechanism\n")
    searchpath = f"hydra.searchpath=['file://{tmp_path / 'mine'}']"
    trained("federation.rounds=2", "paths.output_dir=other", "selector=hers", "mechanisms=idle", searchpath)
    (remedy,) = re.findall(r'give "(.*)" again\.$', refused("resume=other", "federation.rounds=3"))
    assert remedy == searchpath
    trained("resume=other", "federation.rounds=3", remedy, fast=False)
    assert load_run(tmp_path / "other").summary["rounds"] == 3


class TestTrust:
    def test_what_the_user_names_is_trusted(self):
        saved = ["selector._target_=joblib.Memory", "seed=1"]
        with pytest.raises(
            CheckpointError, match=r"names 'joblib.Memory', .* add trust=joblib \(`--trust joblib` to the report\)\.$"
        ):
            check_saved_overrides(saved, ["resume=x"], "here")
        for given in ("trust=joblib", "trust=[joblib]", "trust=[numpy,joblib]"):
            check_saved_overrides(saved, ["resume=x", given], "here")
        assert trusted_by(["seed=1", "trust=[a,b]", "trust=c"]) == ["a", "b", "c"]

    def test_the_command_that_goes_on_names_it(self):
        overrides = ["hydra.searchpath=['file:///o']", "selector._target_=his.own.Selector", "+callbacks.x={_target_: hers.X}"]
        assert needed_to_resume([*overrides, "seed=1", "optimizer._target_=torch.optim.SGD"]) == [
            "hydra.searchpath=['file:///o']", "trust=[hers,his]",
        ]  # fmt: skip
        assert needed_to_resume(["seed=1", "optimizer._target_=torch.optim.SGD"]) == []

    def test_a_module_is_not_its_namesake(self):
        for name in ("fedfacets.x", "torch.optimal.X", "torch.load", "fedfacet", 3, None):
            with pytest.raises(CheckpointError):
                check_trusted({"a": [{"_target_": name}]}, (), "here")
        check_trusted({"a": [{"_target_": "torch.optim.Adam"}], "_partial_": True}, (), "here")


EVIL = "# @package _global_\nmodel: {_target_: torch.hub.load, repo_or_dir: hub, model: m, source: local}\n"


@pytest.mark.parametrize(
    "override",
    ["logger=../../{}/evil", "logger=[csv,../../{}/evil]", "logger='../../{}/evil'", "+../../{}/evil=x", "logger@x=csv",
     "logger=choice(../../{}/evil)", "++logger=../{}/evil"],
)  # fmt: skip
def test_options_outside_the_folders_of_options_are_not_read(run, tmp_path, override):
    (run / "evil.yaml").write_text(EVIL)
    saved = run / ".hydra" / "overrides.yaml"
    given = OmegaConf.to_object(OmegaConf.load(saved))
    saved.write_text(OmegaConf.to_yaml([*given, override.format(run)]))
    with pytest.raises(CheckpointError, match=r"to name options by their names|hold overrides"):
        load_run(run).resume("federation.rounds=3")


@pytest.mark.parametrize("place", ["clients/memory", "model", "metrics.csv", "checkpoints"])
def test_links_out_of_the_folder_are_refused(run, tmp_path, place):
    outside, link = tmp_path / "outside", run / place
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename(outside)
    else:
        outside.mkdir()
        (outside / "weights.pt").write_text("mine")
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    link.symlink_to(outside)
    with pytest.raises(CheckpointError, match="of files and folders"):
        load_run(run).resume("federation.rounds=3")
    assert {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()} == before


def test_a_checkpoint_neither_fetches_nor_writes_data(tmp_path):
    root = tmp_path / "data"
    mine = root / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    settings = plain(compose_job("train", ["dataset=cmnist", f"dataset.root={root}", "dataset.download=true"])[0])
    with pytest.raises(FedFacetError, match=r"Expected MNIST's|to be a whole file of MNIST"):
        reload_data(settings | {"smoke": True})
    assert [mine] == [path for path in root.rglob("*") if path.is_file()]
    assert mine.read_text() == "mine"


def test_only_its_own_files_are_cleared_away(tmp_path):
    folder = tmp_path / "clients" / "memory"
    folder.mkdir(parents=True)
    ours = [f"000001_{64 * 'a'}.pt", f"index_{64 * 'b'}.txt", f"000002_{64 * 'c'}.pt.part"]
    for name in [*ours, "weights.pt", "notes.txt"]:
        (folder / name).touch()
    ClientMemory(tmp_path).keep_only([])
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "weights.pt"]


@pytest.mark.parametrize("name", ["config.yaml.part", "train.log", "checkpoints/last.ckpt.part", "model/config.json.part"])
def test_links_that_lead_nowhere_yet_are_refused_too(refused, run, tmp_path, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "new")
    assert "of files and folders" in refused("resume=run", "federation.rounds=5")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["metrics.csv", "train.log", "summary.json", "checkpoints/last.ckpt.part"])
def test_pipes_are_refused_and_not_waited_for(refused, run, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert f"{name} is neither" in refused("resume=run", "federation.rounds=5")


def test_a_picture_is_not_written_through_a_link(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (run / "decomposition.png.part").symlink_to(tmp_path / "mine")
    assert describe.main(["decomposition=run"]) == 0
    assert (tmp_path / "mine").read_text() == "mine"


def test_its_configuration_reads_nothing_of_the_environment(run, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    (run / "config.yaml").write_text("seed: 0\na: ${oc.env:SECRET}\n")
    with pytest.raises(CheckpointError, match="made of others"):
        _ = load_run("run").config


@pytest.mark.parametrize(
    "name",
    [
        "fedfacet.config.sweeping.Sweep",
        "fedfacet.runs.run.Run",
        "fedfacet.parallel.shared_memory.SharedBytes",
        "fedfacet.storage.client_memory.ClientMemory",
    ],
)
def test_only_parts_of_a_federation_are_trusted(name):
    """Others of our classes read folders, start processes or compose options."""
    with pytest.raises(CheckpointError, match="may do anything"):
        check_trusted({"_target_": name}, (), "here")


def test_weights_and_data_are_fetched_at_no_depth():
    saved = {"dataset": {"download": True}, "model": {"weights": "imagenet", "width": [{"weights": "imagenet"}]}}
    assert without_downloads(saved) == {
        "dataset": {"download": False},
        "model": {"weights": "none", "width": [{"weights": "none"}]},
    }
    assert saved["dataset"]["download"]


@pytest.mark.parametrize(
    "change", [{"federation": {"rounds": "abc"}}, {"federation": {"rounds": [1]}}, {"federation": {"rounds": 10**400}}]
)
def test_a_report_of_it_ends_in_a_sentence(run, capsys, change):
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(run / "config.yaml"), change), run / "config.yaml")
    assert report.main(["run"]) == 2
    assert re.fullmatch(r"error: Expected [^\n]+\n", capsys.readouterr().err)


@pytest.mark.parametrize("content", ["x: " + "[" * 300_000, "".join(f"k{number}: 1\n" for number in range(100_000))])
def test_yaml_that_takes_long_to_read_is_refused_at_once(run, capsys, content):
    (run / "config.yaml").write_text(content)
    assert report.main(["run"]) == 2
    assert "to be as it was written" in capsys.readouterr().err


def test_a_compressed_checkpoint_is_refused(run):
    """It could unpack to more than a memory holds."""
    file = run / "checkpoints" / "last.ckpt"
    packed = io.BytesIO()
    with zipfile.ZipFile(file) as plain_parts, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as parts:
        for part in plain_parts.infolist():
            parts.writestr(part.filename, plain_parts.read(part))
    checkpoint.write(file, packed.getvalue())
    with pytest.raises(CheckpointError, match="compressed"):
        checkpoint.load(file)


@pytest.mark.parametrize("settings", [{"threads": 10**6}, {"federation": {}}, {"engine": {}}, {"memory_format": "nn"}])
def test_settings_of_its_checkpoint_end_no_process(run, capsys, settings):
    """A million threads were a segmentation fault."""
    for file in (run / "checkpoints").glob("*.ckpt"):
        saved, config = checkpoint.load(file)
        checkpoint.save(file, saved, config | settings)
    assert describe.main(["decomposition=run"]) == 2
    assert "Expected `" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"compile": DELETED},
        {"dataset": {}},
        {"selector": {}},
        {"smoke": "yes"},
        {"transforms": {"x": 1}},
        {"optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": [1]}},
        {"optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "momentum": 10**30}},
        {"federation": {"rounds": 2, "cohort_size": "all", "on_bad_update": "raise", "pooled": False}},
    ],
)
def test_a_checkpoints_settings_are_held_to_their_kinds(run, capsys, settings):
    for file in (run / "checkpoints").glob("*.ckpt"):
        saved, config = checkpoint.load(file)
        config = {key: value for key, value in (config | settings).items() if value is not DELETED}
        checkpoint.save(file, saved, config)
    assert describe.main(["decomposition=run"]) == 2
    assert re.fullmatch(r"error: Expected [^\n]+\n", capsys.readouterr().err)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's of sparse tensors
@pytest.mark.parametrize(
    "tensor",
    [torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.zeros(1).expand(10**12)],
    ids=["meta", "sparse", "expanded"],
)
def test_tensors_of_its_checkpoints_have_their_numbers(run, tensor, monkeypatch):
    file = run / "checkpoints" / "last.ckpt"
    saved, config = checkpoint.load(file)
    forged = replace(saved, aggregator={"momentum": tensor})
    with pytest.raises(CheckpointError, match="a tensor lacks its numbers"):
        checkpoint.dumps(forged, config)
    with monkeypatch.context() as patch:  # whoever forges does not check
        patch.setattr(checkpoint, "_check_plain", lambda value: None)
        checkpoint.write(file, checkpoint.dumps(forged, config))
    with pytest.raises(CheckpointError, match="a tensor lacks its numbers"):
        checkpoint.load(file)


@pytest.mark.parametrize("final", [{}, {"round": 10**400}, {"round": "1"}])
def test_what_its_summary_takes_up_are_numbers(refused, run, final):
    file = run / "checkpoints" / "last.ckpt"
    saved, config = checkpoint.load(file)
    callbacks = {**saved.callbacks, "summary": {**saved.callbacks["summary"], "final": final}}
    checkpoint.save(file, replace(saved, callbacks=callbacks), config)
    assert "`callbacks.summary.final`" in refused("resume=run", "federation.rounds=5")


def test_a_table_that_lies_elsewhere_too_is_not_added_to(refused, run, tmp_path):
    os.link(run / "metrics.csv", tmp_path / "mine")
    assert "lies at another path too" in refused("resume=run", "federation.rounds=5")


def test_a_damaged_summary_beside_a_run_that_writes_none_is_a_sentence(train, trained, tmp_path):
    trained("debug=smoke", "~callbacks.summary", "federation.rounds=1", "paths.output_dir=quiet")
    (tmp_path / "quiet" / "summary.json").write_text("[")
    result = train("resume=quiet", "federation.rounds=2")
    assert (result.status, "Traceback" in result.err) == (2, False)
    assert re.search(r"Expected \S*summary\.json to be as it was written", result.err)


@pytest.mark.parametrize("target", ["fedfacet.losses.cross_entropy", "torch.optim.SGD"])
def test_its_model_is_a_network(run, target):
    file = run / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "_target_": target}))
    with pytest.raises(FedFacetError, match="Expected"):
        _ = load_run(run).model


@pytest.mark.parametrize(
    "hostile",
    [
        ["logger=lightning", "logger.lightning_log.logger=WandbLogger",
         "+logger.lightning_log.arguments.settings.base_url='http://127.0.0.1:18999'"],
        ["logger=lightning", "++logger.lightning_log.arguments={save_dir: ../outside}"],
        ["logger=lightning", "logger.lightning_log.logger=MLFlowLogger",
         "++logger.lightning_log.arguments.tracking_uri='sqlite:///outside/x.db'"],
        ["logger=wandb"],
    ],
)  # fmt: skip
def test_it_connects_to_nobody_and_writes_nowhere_else(run, tmp_path, monkeypatch, hostile):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    connected = []

    def refused(self, address):
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", refused)
    saved = run / ".hydra" / "overrides.yaml"
    saved.write_text(OmegaConf.to_yaml([*OmegaConf.to_object(OmegaConf.load(saved)), *hostile]))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(CheckpointError, match="again on the command line"):
        load_run(run).resume("federation.rounds=5")
    assert not connected
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_logger_without_arguments_or_with_those_that_are_given_again_goes_on(run, refused, trained):
    saved = run / ".hydra" / "overrides.yaml"
    mine = "+logger.lightning_log.arguments.name=mine"
    saved.write_text(OmegaConf.to_yaml([*OmegaConf.to_object(OmegaConf.load(saved)), "logger=[tensorboard,lightning]", mine]))
    assert "give `logger.lightning_log.arguments.name` again" in refused("resume=run", "federation.rounds=5")
    trained("resume=run", "federation.rounds=5", mine)
    assert list(run.glob("mine/version_0/metrics.csv"))
    assert list(run.glob("tensorboard/events*"))


def test_a_resume_fetches_no_weights_since_the_checkpoint_has_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: pytest.fail(f"it connects to {address}"))
    config, _ = compose_job("train", ["model=mobilenet_v2_gn", "model.weights=imagenet", "heterogeneity=true", "resume=x"])
    settle(config)
    assert build(config, tmp_path / "run").state.round == 0
    assert [path.name for path in tmp_path.iterdir()] == ["payload"]


def test_its_number_of_workers_is_held_to_the_cores(run, monkeypatch):
    """Where a checkpoint is read: a resume asks for more again."""
    _, settings = checkpoint.load(run / "checkpoints" / "last.ckpt")
    engine = {"_target_": "fedfacet.engines.workers.WorkersEngine", "workers": 100_000, "device": "cpu"}
    assert rebuild({**settings, "engine": engine, "callbacks": {}, "logger": {}}, run).engine.workers == num_cores()


@pytest.mark.parametrize("place", ["attacks", "tensorboard/events", "lightning_logs/version_0/metrics.csv"])
def test_no_link_leads_out_however_deep(refused, run, tmp_path, place):
    (tmp_path / "outside").mkdir()
    (run / place).parent.mkdir(parents=True, exist_ok=True)
    (run / place).symlink_to(tmp_path / "outside")
    assert "of files and folders of its own" in refused("resume=run", "federation.rounds=5")
    assert attack.main(["run=run"]) == 2
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("place", ["wandb", ".wandb"])
def test_it_has_no_settings_of_wandb(refused, run, place):
    (run / place).mkdir(exist_ok=True)
    (run / place / "settings").write_text("[default]\nbase_url = http://127.0.0.1:18999\n")
    assert "without settings of W&B" in refused("resume=run", "federation.rounds=5")

"""Bad input: one clear sentence, exit status 2, nothing written."""

import dataclasses
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet.config import resuming
from fedfacet.storage import checkpoint

UNKNOWN = [
    # what is given, what must be suggested
    ("slector=uniform", "`selector`"),
    ("selector=unifrom", "`selector=uniform`"),
    (f"transforms={'x' * 300}", "choose one of these"),
    ("experiment=digit_gsc", "`experiment=digits_gsc`"),
    ("logger=[wandb,tensorbord]", "`logger=tensorboard`"),
    ("partition=gci_10", "`partition=gci_100`"),
    ("selector.rotaton=round", "`selector.rotation`"),
    ("federation.round=5", "`federation.rounds`"),
    ("rounds=5", "`federation.rounds`"),
    ("hydra.run.dirr=x", "`hydra.run.dir`"),
    ("+sed=1", "`seed`"),
    ("+optimizer.nesterof=true", "`optimizer.nesterov`"),
    ("+selector.orthogonl=signed", "`selector.orthogonal`"),
    ("+experiment=digits_gsc", "`experiment=digits_gsc`"),
    ("+selector@other=uniform", "`--cfg job`"),
    ("+foo=3", "`--cfg job`"),
    ("selector.heat=3", "`selector.pretraining_rounds`"),  # nothing is spelt like it, so what there is
    ("~selectr", "`selector`"),
    ("~selector", "`selector=feddiverse`"),
    ("partition=[]", "`partition=gsc`"),
    ("experiment=null", "`~experiment`"),
]


@pytest.mark.parametrize(("override", "suggestion"), UNKNOWN)
def test_unknown_names_come_with_the_nearest_valid_ones(refused, override, suggestion):
    sentence = refused(override)
    assert override.lstrip("+~").partition("=")[0].rpartition("@")[2] in sentence
    remedy = sentence.partition(", but ")[2]
    assert suggestion in remedy, sentence
    if "the nearest are" in remedy:  # and it is the first of them
        assert remedy.partition("the nearest are ")[2].startswith(suggestion), sentence


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["selector=uniform", "selector.pretraining_rounds=2"], "selector=feddiverse"),
        (["aggregator=fedavg", "aggregator.server_lr=1"], "aggregator=fedavgm"),
        (["model=mlp", "model.width=3"], "model=resnet8"),
    ],
)
def test_a_key_of_another_option_comes_with_the_options_that_have_it(refused, given, told):
    sentence = refused(*given)
    key = given[-1].partition("=")[0]
    assert sentence.startswith(f"Expected an option that has `{key}`, but the one that is chosen has not: choose ")
    assert told in sentence


@pytest.mark.parametrize("override", ["partition.clients.0=3", "partition.clients.0=x", "partition.clients=x"])
def test_a_group_of_clients_that_is_none_is_refused_with_smoke_too(refused, override):
    assert refused("debug=smoke", override)[:60] == refused(override)[:60]


def test_only_keys_that_are_spelt_alike_are_near(refused):
    assert refused("federation.round=5").endswith("the nearest are `federation.rounds`.")


_NO_TEXTS = [
    *(("seed", value) for value in ("{0: 1}", "{true: 1}", "{1.5: a}", "[{a: {0: 1}}]", "{a: {b: {-1: c}}}")),
    *((option, "{0: 1}") for option in ("+selector.items", "partition.seed", "+optimizer.foo", "aggregator.weighting")),
    *((option, "{0: 1}") for option in ("hydra.sweeper.params", "hydra.job.env_set", "where_present", "wandb.tags", "model")),
]
"""Options, and mappings for them with keys that are no texts."""

IMPOSSIBLE = [
    # what is given, what must be named
    ("seed=-1", "seed"),
    ("seed=1.5", "`seed`"),
    ("seed=1,2", "-m"),
    ("federation.rounds=0", "`federation.rounds`"),
    ("federation.cohort_size=25", "24 clients"),
    ("federation.on_bad_update=ignore", "'drop'"),
    ("federation=3", "`federation`"),
    ("threads=2000000", "`threads`"),
    ("paths.output_dir=''", "`paths.output_dir`"),
    ("optimizer.lr=-0.1", "-0.1"),
    ("optimizer.lr=nan", "`optimizer.lr`"),
    ("optimizer.lr=???", "lr"),
    ("optimizer.lr=${rate}", "rate"),
    ("optimizer._target_=torch.optim.SDG", "`optimizer._target_`"),
    ("local.batch_size=0", "batch_size"),
    ("heterogeneity.q=0", "`q`"),
    ("aggregator.momentum=1", "momentum"),
    ("aggregator.server_lr=inf", "`aggregator.server_lr`"),
    ("model.width=0", "width"),
    ("engine.device=gpu", "`engine.device`"),
    ("callbacks.evaluate.every_n_rounds=0", "every_n_rounds"),
    ("callbacks.evaluate=null", "`callbacks.evaluate`"),
    ("wandb.mode=of", "'offline'"),
    ("dataset.held_out_fraction=1", "held_out_fraction"),
    ("partition.scale=0.15", "[[90, 90], [10, 10]]"),  # would move triplets
    ("partition.scale=1", "897"),  # more than there is of class 0, named with what is wanted and what is available
    ("partition.clients=[{count: 1}]", "matrix"),
    ("partition.tolerance=-1", "tolerance"),
    ("rounds", "key=value"),
    ("task=a b, c", "-m"),
    ("task=(a", "quotes"),
    (
        "paths.output_dir=/tmp/m_lr=5",
        "whose value has a `=` in it: put it in quotes that the shell keeps, \"paths.output_dir='/tmp/m_lr=5'\"",
    ),
    ("optimizer.lr=nan", "to be a finite number, but got nan"),
    ("--rounds=5", "--rounds=5"),
    ("--config-name=describe", "--config-name"),
    ("--resolve", "--cfg job"),
    ("--cfg", "expected one argument"),
    ("optimizer.lr=1e308", "give a smaller one"),
    ("local.amount=1000000000000000000000", "give a smaller one"),
    ("federation.rounds=1000000000000000000000", "`federation.rounds`"),
    ("selector=[uniform]", "Expected one option for `selector`"),
    ("hydra.searchpath=3", "file:///FOLDER"),
    ("engine.device=meta", "`engine.device`"),
    ("+callbacks.x._target_=os.system", "`callbacks.x._target_`"),
    ("model._target_=3", "`model._target_`"),
    ("loss._target_=torch.nn.functional.l1_loss", "a function of logits and a batch"),
    ("local=[[1]]", "`local`"),
    ("callbacks.csv_log=???", "callbacks.csv_log"),
    ("loss._partial_=false", "cross_entropy() missing 2"),
    *((f"{option}={value}", option.lstrip("+~")) for option, value in _NO_TEXTS),
    pytest.param(f"task={'[' * 2000}1{']' * 2000}", "key=value", id="nested"),
]


@pytest.mark.parametrize(("override", "named"), IMPOSSIBLE)
def test_impossible_values_are_named(refused, override, named):
    assert named in refused(override)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("correction=proximal", "correction.mu=-1"), "mu"),
        (("loss=generalized_cross_entropy", "loss.q=0"), "`q`"),
        (("transforms=clip", "transforms.clip.clip_norm=0"), "clip_norm"),
        (("participation=dropouts", "participation.dropout_probability=1.5"), "dropout_probability"),
        (("~experiment", "partition=dirichlet", "partition.alpha=0"), "alpha"),
        (("~experiment", "partition=iid", "partition.num_clients=100000"), "num_clients"),
        (("model=mobilenet_v2_gn", "model.stochastic_depth=-1"), "stochastic_depth"),
        (("model=mobilenet_v2_gn", "model.weights=nowhere.pth"), "nowhere.pth"),
        (("dataset=spawrious", "dataset.classes=labrador"), "`dataset.classes`"),
        (("selector=uniform", "selector.pretraining_rounds=1"), "`selector.pretraining_rounds`"),
        (("selector=probe_fairness", "selector.probe.probe_steps=0"), "`probe_steps`"),  # of a part within a part
        (("federation.step_budget=800", "local.amount=900"), "`federation.step_budget`"),
        (("federation.step_budget=-5",), "`federation.step_budget`"),
    ],
)
def test_impossible_values_of_other_options_are_named(refused, overrides, named):
    assert named in refused(*overrides)


@pytest.mark.slow
def test_in_a_process_of_its_own_it_ends_with_status_2_and_one_line(checkout, tmp_path):
    command = [sys.executable, str(checkout / "src" / "train.py"), "federation.cohort_size=25"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "error: Expected `federation.cohort_size` between 1 and the federation's 24 clients, but got 25"
    )
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


class TestDatasets:
    @pytest.fixture
    def arguments(self, tmp_path):
        return "dataset=cmnist", "partition.scale=0.1", "partition.tolerance=1", f"dataset.root={tmp_path / 'mnist'}"

    @pytest.fixture
    def mnist(self, tmp_path):
        """A small MNIST in the real layout, compressed."""
        pixels = np.random.default_rng(0)
        raw = tmp_path / "mnist" / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for part, count in (("train", 1000), ("t10k", 200)):
            header = np.array([0x803, count, 28, 28], ">i4").tobytes()
            (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.bytes(count * 28 * 28)))
            labels = bytes(label % 10 for label in range(count))
            (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(
                gzip.compress(np.array([0x801, count], ">i4").tobytes() + labels)
            )
        return raw

    def test_missing(self, refused, arguments):
        sentence = refused(*arguments)
        for part in ("mnist/MNIST/raw", "12 MB", "dataset.download=true", "experiment=digits_gsc"):
            assert part in sentence
        sentence = refused("experiment=spawrious_gsc")
        for part in ("spawrious224", "14.4 GB", "dataset.download=true", "experiment=spawrious_gsc_synthetic"):
            assert part in sentence

    @pytest.mark.parametrize("length", [0, 1, 15, 2000])
    def test_truncated(self, refused, arguments, mnist, length):
        file = mnist / "train-images-idx3-ubyte.gz"
        file.write_bytes(file.read_bytes()[:length])
        assert str(file.name) in refused(*arguments)

    def test_short(self, refused, arguments, mnist):
        file = mnist / "t10k-labels-idx1-ubyte.gz"
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-1]))
        assert file.name in refused(*arguments)

    def test_a_folder_in_place_of_a_file(self, refused, arguments, mnist):
        (mnist / "train-labels-idx1-ubyte.gz").unlink()
        (mnist / "train-labels-idx1-ubyte.gz").mkdir()
        assert "train-labels-idx1-ubyte" in refused(*arguments)


class TestOutputFolder:
    def test_that_already_holds_a_run(self, refused, run):
        sentence = refused("paths.output_dir=run")  # compares the folder before and after
        assert "already holds a run" in sentence
        assert "`resume=run`" in sentence

    def test_of_a_sweep_that_already_holds_a_job(self, refused, run, tmp_path):
        shutil.move(run, tmp_path / "sweep" / "1")
        assert "sweep/1 already holds a run" in refused("paths.sweep_dir=sweep", "seed=3,4", "-m")

    @pytest.mark.parametrize("folder", ["/proc/run", "/dev/null/run", "/dev/null", "x" * 300])
    def test_that_cannot_be_made(self, refused, folder):
        sentence = refused(f"paths.output_dir={folder}")
        assert folder in sentence
        assert "paths.output_dir" in sentence

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_that_may_not_be_written_to(self, refused, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "closed" in refused("paths.output_dir=closed/run")

    def test_on_a_disk_that_is_nearly_full(self, refused, monkeypatch):
        monkeypatch.setattr(resuming, "MIN_FREE_BYTES", 1 << 60)
        assert "MiB of free disk" in refused("paths.output_dir=run")


def test_a_log_file_that_cannot_be_written_does_not_fill_the_terminal(trained):
    """What stops a run on a full disk is said once, by the table or checkpoint that cannot be written."""
    err = trained("federation.rounds=1", "hydra.job_logging.handlers.file.filename=/dev/full").err
    assert "Logging error" not in err


def test_a_full_file_system(train, start, trained, tmp_path):
    """A real one, where mounting is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=66m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        process = start("paths.output_dir=disk/run", "federation.rounds=30")
        process.wait_until((disk / "run" / "metrics.csv").exists)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=64k"], capture_output=True)
        result = process.result()
        assert (result.status, result.err.count("Expected free disk space")) == (2, 1), result.err
        assert "Traceback" not in result.err
        assert not list(disk.rglob("*.part"))
        (disk / "filler").unlink()
        trained("resume=disk/run", fast=False)
        assert len((disk / "run" / "metrics.csv").read_text().splitlines()) == 31
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class TestResume:
    @pytest.mark.parametrize(
        ("override", "parts"),
        [
            ("seed=1", ("`seed`", "was 0", "now 1")),
            ("partition.seed=1", ("`partition.seed`", "was 0", "now 1")),
            ("partition=gci", ("`partition`", "'gsc'", "'gci'")),
            ("selector=uniform", ("`selector`", "'feddiverse'", "'uniform'")),
            ("aggregator.server_lr=1.0", ("`aggregator.server_lr`", "was 0.1", "now 1.0")),
            ("federation.cohort_size=3", ("`federation.cohort_size`", "was 9", "now 3")),
            ("callbacks.evaluate.every_n_rounds=2", ("`callbacks.evaluate.every_n_rounds`", "was 1", "now 2")),
            ("threads=2", ("`threads`", "was 1", "now 2")),
        ],
    )
    def test_of_another_configuration(self, refused, run, override, parts):
        sentence = refused("resume=run", "federation.rounds=5", override)
        for part in parts:
            assert part in sentence

    def test_of_a_finished_run(self, refused, run):
        sentence = refused("resume=run")
        assert "2 rounds are done" in sentence
        assert "federation.rounds" in sentence
        assert "2 rounds are done" in refused("resume=run", "federation.rounds=1")
        assert "2 rounds are done" in refused("resume=run", "~callbacks.figures"), "which was asked for at the start too"

    @pytest.mark.parametrize("length", [0, 100, 10_000, -1])
    def test_of_a_truncated_checkpoint(self, refused, run, length):
        file = run / "checkpoints" / "last.ckpt"
        file.write_bytes(file.read_bytes()[:length])
        sentence = refused("resume=run", "federation.rounds=5")
        assert "run/checkpoints/last.ckpt" in sentence
        assert "truncated" in sentence

    def test_of_a_checkpoint_of_another_partition(self, refused, run):
        """The same settings, but the files of the data set have changed."""
        file = run / "checkpoints" / "last.ckpt"
        saved, config = checkpoint.load(file)
        checkpoint.save(file, dataclasses.replace(saved, partition_digest="0" * 64), config)
        assert "partition" in refused("resume=run", "federation.rounds=5")

    def test_of_something_else(self, refused, run, tmp_path):
        assert "nowhere" in refused("resume=nowhere")
        assert "run folder" in refused(f"resume={'x' * 300}")
        assert "run folder" in refused(f"resume={tmp_path}")
        assert "in its own folder, but got paths.output_dir=elsewhere" in refused("resume=run", "paths.output_dir=elsewhere")
        shutil.copy(run / "checkpoints" / "last.ckpt", run / "checkpoints" / "round_000001.ckpt")
        assert refused("resume=run/checkpoints/round_000001.ckpt").endswith("got run/checkpoints/round_000001.ckpt: give run.")
        os.chdir(run / "checkpoints")
        assert "2 rounds are done" in refused("resume=last.ckpt")
        assert refused("resume=round_000001.ckpt").endswith("got round_000001.ckpt: give ...")
        os.chdir(tmp_path)
        torch.save({"weights": torch.zeros(3)}, run / "checkpoints" / "last.ckpt")
        assert "of format 1, which earlier versions wrote" in refused("resume=run", "federation.rounds=5")
        (run / "checkpoints" / "last.ckpt").unlink()
        assert "there is none" in refused("resume=run", "federation.rounds=5")


class TestMultirun:
    @pytest.mark.parametrize("override", ["resume=run", "paths.output_dir=run"])
    def test_what_is_for_one_run_only(self, refused, override):
        assert override.partition("=")[0] in refused(override, "seed=1,2", "-m")

    @pytest.mark.parametrize(
        ("sweep", "named"),
        [
            (("seed=1,2,x",), "`seed`"),
            (("selector=uniform,feddiverse,pow_e",), "pow_e"),
            (("federation.cohort_size=9,25",), "24 clients"),
            (("partition.scale=0.2,0.15",), "0.15"),
            (("seed=1,2", "rounds=3"), "`federation.rounds`"),
            (("seed=1,2", "task=(a"), "task=(a"),
            (("seed=1,2", "slector=uniform"), "`selector`"),
        ],
    )
    def test_one_wrong_job_stops_all_before_any_begins(self, refused, sweep, named):
        assert named in refused(*sweep, "-m")


def test_a_bad_update_names_client_and_round_and_the_remedy_that_is_named_is_taken(train):
    result = train("paths.output_dir=run", "optimizer.lr=1e30")
    assert result.status == 2
    assert "Traceback" not in result.err
    assert "client 0 in round 1" in result.err
    assert "federation.on_bad_update=drop" in result.err
    # A resume takes it; here it does not help, as nobody has a valid update.
    result = train("resume=run", "federation.on_bad_update=drop", fast=False)
    assert result.status == 2
    assert result.err.splitlines()[-1].startswith("error: Expected a valid update in round 1, but all 24 were dropped: ")


def test_a_run_that_cannot_go_on_does_not_keep_the_others_of_a_sweep_from_it(train, tmp_path):
    """Nor does it, or one that is well, leave its number of threads to the next."""
    odd = os.cpu_count() + 1
    short = ("selector=uniform", "model.width=2", "model.hidden=4", "~callbacks.figures", "federation.rounds=1")
    jobs = ("optimizer.lr=1e30,0.1", f"threads={odd},null", "paths.sweep_dir=sweep", "-m")
    result = train(*short, *jobs, fast=False)
    assert result.status == 1, result.err
    assert "Traceback" not in result.err
    failed = re.findall(r"not finished: (\S+): .*Expected a finite update", result.err)
    assert [Path(run_dir).name for run_dir in failed] == ["0", "1"]
    summaries = [json.loads((tmp_path / "sweep" / job / "summary.json").read_text()) for job in "23"]
    assert [summary["status"] for summary in summaries] == ["finished"] * 2
    assert summaries[0]["threads"] == odd != summaries[1]["threads"]

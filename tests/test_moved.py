"""A run folder or a yaml that names a part by a former name is read, resumed and reported as before."""

import inspect
import shutil
from pathlib import Path

import pytest
from hydra.utils import get_object

import fedfacet
from fedfacet.analysis.runs import differing_keys
from fedfacet.analysis.runs import load_run as reported
from fedfacet.config import cell_digest, compose_job, plain
from fedfacet.config.kinds import KINDS
from fedfacet.config.trust import check_resumed, check_saved_overrides, check_trusted
from fedfacet.deploy.agreement import agreed, settings_digest
from fedfacet.errors import CheckpointError
from fedfacet.moved import MOVED, with_current_names
from fedfacet.storage import checkpoint

FAST = (
    "experiment=digits_gsc", "method=s_fedavg", "threads=1", "model.width=2", "model.hidden=4", "callbacks=[]", "logger=[]",
    "federation.rounds=1", "federation.cohort_size=2",
)  # fmt: skip
BEFORE, NOW = "fedfacet.selectors.s_fedavg.SFedAvgSelector", "fedfacet.methods.s_fedavg.SFedAvgSelector"


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_every_former_name_leads_to_a_part(before, now):
    part = get_object(now)
    assert part.__module__ == now.rpartition(".")[0]
    assert inspect.isfunction(part) or issubclass(part, tuple(map(get_object, KINDS.values())))
    assert now not in MOVED
    for name in (before, now):
        check_trusted({"_target_": name}, (), "here")


def with_former_names(run):
    """Rewrite a run folder as the version before has written it."""
    overrides = run / ".hydra" / "overrides.yaml"
    text = overrides.read_text().partition("\n")[2]  # older ones have no seal
    assert NOW in text
    for file, former in ((overrides, text), (run / "config.yaml", (run / "config.yaml").read_text())):
        file.write_text(former.replace(NOW, BEFORE))
    for file in (run / "checkpoints").glob("*.ckpt"):
        saved, config = checkpoint.load(file)
        checkpoint.save(file, saved, {**config, "selector": {**config["selector"], "_target_": BEFORE}})
    (run / "SHA256SUMS").unlink()


def test_a_run_folder_with_former_names_is_resumed_and_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fedfacet.train(*FAST, "callbacks=[default]", f"selector._target_={NOW}", "paths.output_dir=now")
    shutil.copytree("now", "before")
    with_former_names(Path("before"))
    assert differing_keys([reported(Path("now")), reported(Path("before"))]) == []
    assert fedfacet.load_run("before").config.selector._target_ == NOW
    runs = [fedfacet.load_run(name).resume("federation.rounds=2") for name in ("now", "before")]
    assert runs[0].summary["model_digest"] == runs[1].summary["model_digest"]
    assert NOW in Path("before/config.yaml").read_text()


def test_options_with_former_names_are_composed_and_a_cell_keeps_its_name():
    before, now = (plain(compose_job("train", [*FAST, f"selector._target_={name}"])[0]) for name in (BEFORE, NOW))
    assert before["selector"]["_target_"] == NOW
    assert cell_digest(before) == cell_digest(now)
    assert [cell_digest({"selector": {"_target_": name}}) for name in (BEFORE, NOW)] == ["5c4baadff97fdfbd"] * 2


def test_sites_agree_on_settings_with_parts_that_have_moved():
    settings = agreed(["experiment=digits_gsc", "correction=proximal", "transforms=clip"])
    assert settings_digest(settings) == "aeb1b34319f95194e07d718f8860ec8bbbdf8000a9da19728b51f89c70001a4f"


@pytest.mark.parametrize("name", [BEFORE, NOW])
def test_the_gate_of_trust_sees_no_difference(name):
    given = [*FAST, "paths.output_dir=run"]
    check_saved_overrides([f"selector._target_={name}"], [], "here")
    settings, usual = (plain(compose_job("train", own)[0]) for own in ([*given, f"selector._target_={name}"], given))
    check_resumed(settings, usual, FAST, "here")
    with pytest.raises(CheckpointError, match="may do anything"):
        check_trusted({"_target_": f"my.{name}"}, (), "here")


def test_a_name_is_read_whole():
    assert with_current_names(f'"{BEFORE}"') == f'"{NOW}"'
    others = f"my.{BEFORE} {BEFORE}s {BEFORE}.select /{BEFORE}"
    assert with_current_names(others) == others

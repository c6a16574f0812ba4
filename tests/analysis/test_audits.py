"""What attacks have found, as metrics of a run."""

import json
import math
from pathlib import Path

import pytest

from fedfacet.analysis.audits import load_audits
from fedfacet.analysis.notes import notes_on
from fedfacet.analysis.runs import Run, load_run
from fedfacet.analysis.study import check_metric
from fedfacet.analysis.tables import Column, make_table
from fedfacet.analysis.writers import to_markdown
from fedfacet.audit.success import RATES
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError, FedFacetError

NUMBERS = (
    "null_auc",
    "advantage",
    "advantage_best",
    "null_advantage_best",
    *(f"tpr_at_{rate:g}" for rate in RATES),
    "acc_members",
    "acc_others",
)


def row(attack, client, auc, **more):
    return {"attack": attack, "client": client, "num_samples": 100, "auc": auc} | dict.fromkeys(NUMBERS, 0.1) | more


def write_audit(run, name, *rows, victim="clients", round=50, **threat_model):
    """Write what attack.py leaves behind, as far as it is read back."""
    folder = run / "attacks" / name
    folder.mkdir(parents=True)
    model = {"victim": victim, "moment": "after_training", "round": round, "others": "test"} | threat_model
    (folder / "audit.json").write_text(json.dumps({"threat_model": model, "attacks": list(rows)}))
    return folder


def run_at(folder, seed=0):
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(f"seed: {seed}\nchoices: {{selector: all, experiment: null}}\n")
    final = {"round": 50, "test/acc": 0.9}
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "rounds": 50, "final": final, "best": None}))
    return load_run(folder)


YEOM = [row("loss_threshold", client, auc) for client, auc in ((0, 0.6), (1, 0.8), ("pooled", 0.65), ("mean", 0.7))]
LIRA = [row("lira", client, auc, advantage=None) for client, auc in ((0, 0.5), (1, 0.7), ("pooled", 0.55), ("mean", 0.6))]
GAP = [row("gap", client, 0.9) for client in (0, 1, "pooled", "mean")]


def test_they_are_among_the_metrics_of_the_round_that_was_attacked(tmp_path):
    write_audit(tmp_path, "one", *GAP, *YEOM, attacks={"gap": {}, "loss_threshold": {}})
    write_audit(tmp_path, "two", *LIRA, attacks={"lira": {}})
    write_audit(tmp_path, "early", *[{**one, "auc": 0.99} for one in YEOM], round=20)
    found = run_at(tmp_path).at("last")
    assert found["attack/loss_threshold/auc"] == 0.7
    assert found["attack/loss_threshold/auc_pooled"] == 0.65
    assert found["attack/gap/auc"] == 0.9
    assert found["attack/lira/tpr_at_0.01"] == 0.1
    assert found["attack/mean/auc"] == pytest.approx(0.65), "of LiRA and Yeom; the gap is a baseline"
    assert math.isnan(found["attack/lira/advantage"])
    assert math.isnan(found["attack/mean/advantage"]), "one of them only ranks"
    assert found["test/acc"] == 0.9


def test_the_server_has_metrics_of_its_own_and_a_lone_victim_needs_no_mean(tmp_path):
    write_audit(tmp_path, "server", row("loss_threshold", "server", 0.57), victim="server", moment="after_aggregation")
    write_audit(tmp_path, "client", row("loss_threshold", 3, 0.61))
    found = run_at(tmp_path).at("last")
    assert (found["attack_server/loss_threshold/auc"], found["attack/loss_threshold/auc"]) == (0.57, 0.61)
    assert found["attack/loss_threshold/auc_pooled"] == 0.61


def test_audits_that_do_not_agree_are_told_and_chosen_among(tmp_path):
    weak = {"shadow_models": {"models": 16, "epochs": 25}, "attacks": {"lira": {"mode": "offline"}, "rmia": {"gamma": 1}}}
    long = {"shadow_models": {"models": 16, "epochs": 100}, "attacks": {"lira": {"mode": "offline"}}}
    write_audit(tmp_path, "a", *LIRA, *YEOM, **weak)
    write_audit(tmp_path, "b", *[{**one, "auc": one["auc"] + 0.1} for one in LIRA], *YEOM, **long)
    run = run_at(tmp_path)
    assert run.at("last")["attack/loss_threshold/auc"] == 0.7, "on which both agree"
    for metric in ("attack/lira/auc", "attack/mean/auc"):
        assert metric not in run.at("last")
        with pytest.raises(ConfigError, match=f"agree on '{metric}'") as refusal:
            make_table([run], metric=metric, at="last")
        assert str(refusal.value).endswith(
            f"but {tmp_path}/attacks/a and {tmp_path}/attacks/b do not: they differ in `shadow_models.epochs`, so choose by "
            "--audit shadow_models.epochs=25, or remove one of the folders."
        )
    chosen = run.attacked_as({"shadow_models.epochs": "1e2"})
    assert chosen.at("last")["attack/lira/auc"] == pytest.approx(0.7)
    assert not run.attacked_as({"shadow_models.epochs": "7"}).audits


def test_the_report_chooses_among_audits(tmp_path, capsys):
    for name, moment, auc in (("a", "after_training", 0.7), ("b", "received", 0.6)):
        write_audit(tmp_path, name, *[{**one, "auc": auc} for one in YEOM], moment=moment)
    run_at(tmp_path)
    table = [str(tmp_path), "--metric", "attack/loss_threshold/auc", "--at", "last", "--format", "csv"]
    assert main(table) == 2
    assert "they differ in `moment`, so choose by --audit moment=after_training" in capsys.readouterr().err
    assert main([*table, "--audit", "moment=received"]) == 0
    assert "all,null,60.0,," in capsys.readouterr().out.replace("nan", "")
    assert main([*table, "--audit", "moment=before"]) == 2
    assert "none of 1 runs has one: moment is after_training or received." in capsys.readouterr().err


def test_audits_without_a_number_do_not_stand_against_those_with_one(tmp_path):
    write_audit(tmp_path, "a", row("gap", "mean", 0.6, null_auc=None), shadow_models=None)
    write_audit(tmp_path, "b", row("gap", "mean", 0.6, null_auc=0.51), shadow_models={"models": 6})
    run = run_at(tmp_path)
    assert run.at("last")["attack/gap/null_auc"] == 0.51
    check_metric([run], "attack/gap/null_auc", ["last"])


def test_a_table_gives_them_in_percent_and_says_what_is_missing(tmp_path):
    for seed in range(3):
        write_audit(tmp_path / str(seed), "one", *YEOM, *(LIRA if seed else ()))
    runs = [run_at(tmp_path / str(seed), seed) for seed in range(3)]
    table = make_table(runs, metric="attack/loss_threshold/auc", at="last")
    assert table.cells["all", Column("null", "last")][:2] == (pytest.approx(70), 0)
    assert "70.00" in to_markdown(table.table())
    assert "`attack/loss_threshold/auc` in percent" in table.caption
    notes = " ".join(make_table(runs, metric="attack/lira/auc", at="last").notes)
    assert "not measured in 1 of 3 runs" in notes
    assert "attack them with `python src/attack.py run=DIR attack=[lira]`" in notes
    (note,) = notes_on({("", ""): runs}, "attack/mean/auc", ["last"])
    assert note == (
        "`attack/mean/auc` is the mean over `loss_threshold` in 1; over `loss_threshold`, `lira` in 2. The thesis averages "
        "over `loss_threshold`, `lira`, `trajectory`."
    )
    with pytest.raises(ConfigError, match=r"attack them with `python src/attack.py run=DIR attack=\[rmia\] victim=server`"):
        make_table(runs, metric="attack_server/rmia/auc", at="last")


def test_a_run_that_goes_on_leaves_its_audits_behind(tmp_path):
    write_audit(tmp_path, "one", *YEOM, round=49)
    assert not [name for name in run_at(tmp_path).at("last") if name.startswith("attack")]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"threat_model": {}, "attacks": []}', '{"threat_model": {"victim": "clients"}, "attacks": [1]}',
     '{"threat_model": {"victim": "everybody"}, "attacks": []}', '{"threat_model": {"victim": []}, "attacks": []}',
     '{"threat_model": {"victim": "clients"}, "attacks": [{"attack": "gap", "client": 0}]}',
     '{"threat_model": {"victim": "clients"}, "attacks": [{"attack": "gap", "client": 0, "auc": "0.5"}]}',
     '{"threat_model": {"victim": "clients"}, "attacks": [{"attack": "gap", "client": 0, "auc": true}]}'],
)  # fmt: skip
def test_a_damaged_audit_costs_one_sentence(tmp_path, content):
    folder = tmp_path / "attacks" / "one"
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(content)
    with pytest.raises(FedFacetError, match=r"^Expected .*audit.json to be as it was written, but "):
        load_audits(tmp_path)


def test_an_audit_that_was_broken_off_is_none(tmp_path):
    (tmp_path / "attacks" / "one").mkdir(parents=True)
    (tmp_path / "attacks" / "one" / "attacks.csv").write_text("attack,client\n")
    assert load_audits(tmp_path) == ()
    assert Run(Path("x"), 0, {}, None).audits == ()

"""Students of clients' models and of shadow models, on real runs."""

import json
import re

import numpy as np
import pytest

from fedfacet.attacks import Trajectory
from fedfacet.audit.shadows import Shadows
from fedfacet.audit.trajectories import _shadow_models, record, split_for
from fedfacet.audit.victims import Victim, round_to_attack
from fedfacet.build import fresh_model
from fedfacet.commands.attack import main
from fedfacet.data.audit_set import AuditSet
from fedfacet.engines.base import Engine
from fedfacet.errors import FedFacetError
from fedfacet.types import Partition

OPTIONS = ("attack=trajectory", "attack.trajectory.distill_epochs=3", "attack.trajectory.distill_lr=0.1", "shadow.epochs=16")


def row_of(told, client="pooled"):
    return next(row for row in told["attacks"] if row["client"] == client)


def test_a_split_deals_the_others_samples():
    draw = np.random.default_rng(0).permutation(400)
    partition = Partition(tuple(np.sort(part) for part in (draw[:90], draw[90:200], draw[200:])))
    split = split_for(partition, 1, seed=3)
    parts = (split.members, split.others, split.distilled)
    assert list(map(len, parts)) == [72, 72, 146]
    assert sorted(np.concatenate(parts)) == sorted([*partition.indices[0], *partition.indices[2]])
    assert all((np.diff(part) > 0).all() for part in parts)
    assert not np.array_equal(split.members, split_for(partition, 1, seed=4).members)
    with pytest.raises(FedFacetError, match="40 samples or more of clients other than 0"):
        split_for(Partition((np.arange(50), np.arange(50, 80))), 0, seed=0)


def test_models_that_learnt_by_heart_are_found_out_and_one_that_saw_nothing_is_not(run, attack):
    folder = run("callbacks.save_checkpoint.keep=all")
    after = row_of(attack(folder, *OPTIONS))
    assert after["auc_low"] > 0.6
    before = row_of(attack(folder, *OPTIONS, "round=1", "moment=received"))
    size = before["members"] / 3
    assert abs(before["auc"] - 0.5) < 4 * np.sqrt((2 * size + 1) / (12 * size**2)) / np.sqrt(3)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(("engine=debug",), id="debug"),
        pytest.param(("engine=workers", "engine.workers=2"), id="workers", marks=pytest.mark.slow),
    ],
)
def test_engines_come_to_the_same_and_shadow_models_are_trained_once(run, tmp_path, capsys, engine):
    told = []
    small = ["attack=trajectory", "attack.trajectory.distill_epochs=1", "shadow.epochs=2"]
    for options in (engine, (), ()):
        where = tmp_path / "other" if options else tmp_path / "one"
        assert main([f"run={run()}", "output=json", f"paths.log_dir={where}", *small, *options]) == 0
        printed = capsys.readouterr()
        told.append((json.loads(printed.out)["attacks"], "3 shadow models" in printed.err))
    assert [trained for _, trained in told] == [True, True, False]
    assert told[0][0] == told[1][0] == told[2][0]
    for file in (tmp_path / "one" / "attack" / "trajectories").iterdir():
        file.write_bytes(file.read_bytes()[:-8])
    assert main([f"run={run()}", f"paths.log_dir={tmp_path / 'one'}", *small]) == 2
    assert re.search("Expected .*safetensors to be as it was written, but it cannot be read", capsys.readouterr().err)


def test_a_target_that_is_the_shadow_model_has_its_trajectories(run, tmp_path):
    """Students start alike and see the same batches, so that nothing but the teacher makes a difference."""
    attack, shadows = Trajectory(distill_epochs=2), Shadows(epochs=2)
    with round_to_attack(run()) as again:
        split = split_for(again.data.partition, 1, attack.seed)
        clients = again.federation.engine.clients

        def recorded(model):
            half = len(split.members)
            audit_set = AuditSet(split.judged, np.arange(2 * half) < half, np.zeros(2 * half, np.bool_))
            victim = Victim(1, 1.0, half, model, {}, audit_set)
            (found,) = record(
                attack, shadows, again, [victim], lambda number: fresh_model(again.settings, 0, number),
                make_engine=Engine, folder=tmp_path, facts={},
            )  # fmt: skip
            return found

        first = recorded(again.federation.state.model)
        assert not np.allclose(first.target, first.shadow)
        models = _shadow_models(clients, shadows, lambda n: fresh_model(again.settings, 0, n), Engine, {1: split}, [1], 0)
        same = recorded(models[1])
        np.testing.assert_array_equal(same.target, same.shadow)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("victim=server",), "takes its own data from other clients, but got the server's"),
        (("attack.trajectory.distill_lr=1e30",), "lower attack.trajectory.distill_lr"),
        (("attack.trajectory.distill_epochs=0",), "attack.distill_epochs"),
    ],
)
def test_bad_input_costs_one_sentence(run, tmp_path, capsys, options, sentence):
    folder = run("seed=21")
    given = [option for option in OPTIONS if option.partition("=")[0] not in {other.partition("=")[0] for other in options}]
    assert main([f"run={folder}", f"paths.log_dir={tmp_path}", *given, *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not (folder / "attacks").exists()

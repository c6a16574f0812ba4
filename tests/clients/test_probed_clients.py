"""A cache may lose what it likes, and must never give what is not the same."""

from dataclasses import replace

import pytest
import torch

from fedfacet.clients.divided_training import HalfTrained, ProbedClients
from fedfacet.types import Broadcast, ClientTask

MODEL = {"w": torch.zeros(3)}
MEMORY = {"m": torch.zeros(2)}
TASK = ClientTask(4, 2, 7, Broadcast(MODEL, {"c": MODEL["w"]}), MEMORY)


def half(num_steps=2, size=100):
    return HalfTrained(num_steps, {"w": torch.zeros(size)}, {0: {"step": 3, "momentum": torch.zeros(size)}}, [], 0.0, 1)


@pytest.fixture
def probed():
    kept = ProbedClients()
    kept.keep(TASK, half())
    return kept


def test_what_is_kept_is_found_for_the_same_task_however_often(probed):
    found = [probed.find(TASK, 10) for _ in range(2)]
    assert found[0] is found[1] is not None


@pytest.mark.parametrize("stop", [1, 2])
def test_only_what_lies_before_the_end_is_found(probed, stop):
    assert probed.find(TASK, stop) is None
    assert probed.find(TASK, 3) is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(TASK, client_id=3),
        replace(TASK, step_fraction=0.5),
        replace(TASK, lr_factor=0.5),
        replace(TASK, broadcast=Broadcast(dict(MODEL), TASK.broadcast.extras)),
        replace(TASK, broadcast=Broadcast(MODEL)),
        replace(TASK, broadcast=Broadcast(MODEL, {"c": torch.zeros(3)})),
        replace(TASK, memory={}),
        replace(TASK, memory={"m": torch.zeros(2)}),
    ],
    ids=["client", "straggler", "learning rate", "model", "no extras", "extras", "no memory", "memory"],
)
def test_another_task_finds_nothing(probed, other):
    assert probed.find(other, 10) is None
    assert probed.find(TASK, 10) is not None


@pytest.mark.parametrize("other", [replace(TASK, round=3), replace(TASK, seed=8)], ids=["round", "seed"])
def test_another_round_forgets(probed, other):
    assert probed.find(other, 10) is None
    assert probed.find(TASK, 10) is None


def test_a_later_probe_replaces_an_earlier_one(probed):
    probed.keep(TASK, half(num_steps=5))
    assert probed.find(TASK, 10).num_steps == 5


def test_no_more_is_kept_than_fits():
    """Weights and momentum of 100 floats take 800 bytes."""
    kept = ProbedClients(max_bytes=2_000)
    tasks = [replace(TASK, client_id=client_id) for client_id in range(4)]
    for task in tasks:
        kept.keep(task, half())
    assert [kept.find(task, 10) is not None for task in tasks] == [True, True, False, False]
    kept.keep(tasks[0], half(size=10))
    kept.keep(tasks[2], half())
    assert [kept.find(task, 10) is not None for task in tasks] == [True, True, True, False]

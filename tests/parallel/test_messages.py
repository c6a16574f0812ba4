"""Tasks on their way."""

import torch

from fedfacet.parallel.messages import pack_tasks, unpack_task
from fedfacet.types import Broadcast, ClientTask


def test_what_tasks_share_travels_once():
    model, extras, memories = {"w": torch.ones(3)}, {"c": torch.ones(2)}, [{"m": torch.full((1,), i)} for i in range(5)]
    wider = {"w": torch.ones(5)}
    broadcasts = [Broadcast(model, extras), Broadcast(model), Broadcast(wider), Broadcast(model, extras), Broadcast(model)]
    tasks = [ClientTask(i, 1, 0, broadcasts[i], memories[i], 0.5) for i in range(5)]
    common, packed = pack_tasks(tasks)
    assert sum(bundle is model for bundle in common) == sum(bundle is extras for bundle in common) == 1
    assert [sum(bundle is wider for bundle in common), sum(bundle is wider for bundle in packed[2].bundles)] == [0, 1]
    assert not any(order.task.broadcast.model or order.task.memory for order, _ in packed)
    unpacked = [unpack_task(order.task, order.places, common + own) for order, own in packed]
    assert [task.client_id for task in unpacked] == list(range(5))
    for client, task in enumerate(unpacked):
        assert task.broadcast.model is broadcasts[client].model
        assert task.broadcast.extras is broadcasts[client].extras
        assert task.memory is memories[client]
        assert (task.round, task.seed, task.step_fraction) == (1, 0, 0.5)

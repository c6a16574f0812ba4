"""Tasks on their way."""

import torch

from fedfacet.parallel.packing import pack_tasks, unpack_task
from fedfacet.types import Broadcast, ClientTask


def test_what_tasks_share_travels_once():
    model, extras, memories = {"w": torch.ones(3)}, {"c": torch.ones(2)}, [{"m": torch.full((1,), i)} for i in range(5)]
    wider = {"w": torch.ones(5)}
    broadcasts = [Broadcast(model, extras), Broadcast(model), Broadcast(wider), Broadcast(model, extras), Broadcast(wider)]
    tasks = [ClientTask(i, 1, 0, broadcasts[i], memories[i], 0.5) for i in range(5)]
    common, packed = pack_tasks(tasks, [1, 2, 0, 1, 2], 3)
    assert [bundle is model for bundle in common] == [True]
    for once in (extras, wider):
        assert sum(bundle is once for one in packed for bundle in one.bundles) == 1
    assert [len(one.orders) for one in packed] == [0, 2, 2]
    assert not any(order.task.broadcast.model or order.task.memory for one in packed for order in one.orders)
    unpacked = {order.task.client_id: unpack_task(order, common + one.bundles) for one in packed for order in one.orders}
    assert sorted(unpacked) == [0, 1, 3, 4]
    for client, task in unpacked.items():
        assert task.broadcast.model is broadcasts[client].model
        assert task.broadcast.extras is broadcasts[client].extras
        assert task.memory is memories[client]
        assert (task.round, task.seed, task.step_fraction) == (1, 0, 0.5)

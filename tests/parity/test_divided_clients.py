"""A client whose steps are divided between two processes is the client that one of them trains whole."""

from functools import partial

import pytest
import torch

from fedfacet import state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.parallel import wire
from fedfacet.types import Broadcast, ClientTask

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "fused": partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "fused_adam": partial(torch.optim.Adam, lr=0.01, fused=True),
}


def sent(half):
    """What arrives in another process: in the usual memory order, in memory that is not its own."""
    numbers, bundles = wire.pack_half(half)
    manifest = wire.manifest_of(bundles)
    memory = torch.empty(manifest.num_bytes, dtype=torch.uint8)
    wire.write(bundles, manifest, memory)
    return wire.unpack_half(numbers, wire.read(manifest, memory))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_second_half_may_be_taken_elsewhere(norm, optimizer, memory_format, net, data):
    """Fused optimizers pair parameters and moments by their place in memory, which another memory order would change."""
    local, cpu = LocalTraining(batch_size=8, amount=2), torch.device("cpu")
    objectives = (ClassificationObjective(net(norm, dropout=0.3), optimizer=OPTIMIZERS[optimizer]) for _ in range(2))
    here, there = (
        Clients(
            objective.to(memory_format=memory_format), OPTIMIZERS[optimizer], data.dataset, data.partition, local, (), cpu,
            memory_format,
        )
        for objective in objectives
    )  # fmt: skip
    task = ClientTask(0, 3, 7, Broadcast(state.clone(here.program.tensors)))
    whole = here.train(task)
    assert whole.num_steps == 8
    for stop in range(1, whole.num_steps):
        half = sent(here.train_part(task, None, stop))
        update = there.train_part(task, half, None)
        assert state.digest(update.delta) == state.digest(whole.delta), stop
        assert state.digest(update.buffers) == state.digest(whole.buffers), stop
        assert update.metrics == whole.metrics

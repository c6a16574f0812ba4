"""A client's training in pieces, which several processes may share: the same update, bit for bit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfacet import rng, state
from fedfacet.clients.optimizers import restore_optimizer
from fedfacet.types import ClientTask, ClientUpdate, State

if TYPE_CHECKING:  # it builds on this file
    from fedfacet.clients.program import Clients, Training


@dataclass(frozen=True, slots=True, eq=False)
class HalfTrained:
    """A client's training that was put down between two steps, to be taken up by whoever has time.

    Attributes:
        num_steps: steps taken so far.
        weights: of the federated module.
        optimizer: the optimizer's state per parameter.
        generators: states of torch's generators, the CPU's first, and where they matter those of numpy's and Python's in one.
        loss_sum: over the samples seen so far.
        num_seen: samples seen so far.
    """

    num_steps: int
    weights: State
    optimizer: dict[int, dict[str, Any]]
    generators: list[Tensor]
    loss_sum: float
    num_seen: int


def train_part(
    clients: "Clients",
    begin: "Callable[[Clients, ClientTask], Training]",
    task: ClientTask,
    half: HalfTrained | None,
    stop: int | None,
) -> ClientUpdate | HalfTrained:
    """Do a part of a client's training, from where it was put down or up to where it shall be.

    Training may be put down after any step and taken up in another process; the update is that of ``Clients.train`` bit for
    bit if the program is ``divisible``. ``begin`` makes a client's training. ``half`` is what an earlier part put down;
    ``None`` to start. With ``stop`` the training is put down after so many steps, counted from the client's first, and what
    there is so far is returned.
    """
    program = clients.program_of(task.broadcast.model)
    if half is None and program.divisible:
        half = clients.probed.find(task, clients.num_steps(task) if stop is None else stop)
    with clients.forked(task):
        training = begin(clients, task)
        if half is not None:
            for _ in range(half.num_steps):
                next(training.batches)
            training.step, training.num_seen, training.loss_sum = half.num_steps, half.num_seen, half.loss_sum
            program.load(half.weights)
            restore_optimizer(training.optimizer, half.optimizer)
            rng.set_states(half.generators, clients.device)
            if clients.draws_elsewhere:
                rng.set_other_states(half.generators[-1])
        training.take_steps(training.num_steps if stop is None else stop)
        if stop is not None:
            generators = rng.get_states(clients.device) + ([rng.get_other_states()] if clients.draws_elsewhere else [])
            optimizer = training.optimizer.state_dict()["state"]
            weights = state.clone(program.tensors)
            return HalfTrained(stop, weights, optimizer, generators, training.loss_sum, training.num_seen)
        update = training.finish()
    return clients.transformed(update, task)

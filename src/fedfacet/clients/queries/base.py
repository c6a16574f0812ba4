"""What a client has at hand to answer a query, and its answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from fedfacet import rng, types
from fedfacet.builtin import is_builtin
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.personal_memory import own_model
from fedfacet.clients.trainer import Clients
from fedfacet.query import Query as Query
from fedfacet.types import Answer, ClientTask, RoundNeeds, State


def _cannot_train(num_steps: int) -> HalfTrained:
    raise RuntimeError("Expected a client that can be trained, but got a context without one: have `Clients` make it.")


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a client has at hand to answer a query.

    Attributes:
        data: its samples.
        model: the broadcast model, on the client's device; scratch space, whose trained weights are free to be changed.
        make_optimizer: the client's usual optimizer for some parameters.
        batch_size: of its local training.
        seed: the run's seed.
        round: number of the round, counted from 1.
        client_id: position of the client in the partition.
        weights: what the client's training of this round starts from, on the CPU; not to be written to.
        train_until: takes the first steps of that training, as many as it is given or all if there are fewer.
        looked_at: samples that go through the model before the first step, where the objective looks at them (FedPAC's does).
        needs: what a round takes on the client's device; ``None`` without devices.
        noise_seed: what noise on answers is drawn from; ``None`` for the run's seed.
        held_out: positions in the data set of what the client never trains on, shape (n,).
    """

    data: ClientData
    model: nn.Module
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    batch_size: int
    seed: int
    round: int
    client_id: int
    weights: State = field(default_factory=dict)
    train_until: Callable[[int], HalfTrained] = _cannot_train
    looked_at: int = 0
    needs: RoundNeeds | None = None
    noise_seed: int | None = None
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def noise(self, purpose: str) -> np.random.Generator:
        """Return the generator of noise on an answer, which follows from the noise key where there is one."""
        seed = self.seed if self.noise_seed is None else self.noise_seed
        return rng.stream(seed, purpose, self.round, self.client_id)

    def stream(self, purpose: str, *keys: int) -> np.random.Generator:
        """Return the generator of a named draw of this client in this round."""
        return rng.stream(self.seed, purpose, self.round, self.client_id, *keys)


def answer_query(clients: Clients, query: types.Query, task: ClientTask) -> Answer:
    """Have a client answer a query on the model that it was sent."""
    program = clients.program_of(task.broadcast.model) if query.needs_model else clients.program
    weights = own_model(task.broadcast.model, task.memory)
    if query.needs_model:
        program.load(weights)
    data = clients.data(task.client_id)
    context = QueryContext(
        data=data,
        model=program.expose(),
        make_optimizer=clients.optimizer,
        batch_size=clients.local.batch_size,
        seed=task.seed,
        round=task.round,
        client_id=task.client_id,
        weights=weights,
        train_until=partial(_train_until, clients, task),
        looked_at=len(data) if program.data_hooks is not None else 0,
        needs=clients.needs[task.client_id] if clients.needs else None,
        noise_seed=clients.noise_seed(task.seed),
        held_out=clients.held_out_by(task.client_id),
    )
    try:
        with program.answering():
            answer = query.answer(context)
        if not is_builtin(query):
            program.restore_trainable()
            if not isinstance(answer, Answer):
                came = type(answer).__name__
                raise ValueError(f"Expected the query to return an Answer(value, floats_up, samples), but got {came}: fix it.")
        return answer
    except Exception as error:
        error.add_note(f"It happened to client {task.client_id} in round {task.round}, asked by {type(query).__name__}.")
        raise


def _train_until(clients: Clients, task: ClientTask, num_steps: int) -> HalfTrained:
    """Take the first steps of a client's training, and keep what they lead to in case the client is selected."""
    planned, program = clients.num_steps(task), clients.program_of(task.broadcast.model)
    with program.answering(both=False):
        half = clients.train_part(task, None, min(num_steps, planned))
    assert isinstance(half, HalfTrained)  # it was stopped
    program.expose()  # for whatever the query does next
    if num_steps < planned and program.divisible:
        clients.probed.keep(task, half)
    return half

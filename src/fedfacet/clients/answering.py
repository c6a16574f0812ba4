"""A client's answer to a query."""

from functools import partial
from typing import TYPE_CHECKING

from fedfacet.builtin import is_builtin
from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.personal_memory import own_model
from fedfacet.clients.queries.base import QueryContext
from fedfacet.types import Answer, ClientTask, Query

if TYPE_CHECKING:  # it builds on this file
    from fedfacet.clients.program import Clients


def answer(clients: "Clients", query: Query, task: ClientTask) -> Answer:
    """Have a client answer a query on the model that it was sent."""
    program = clients.program_of(task.broadcast.model) if query.needs_model else clients.program
    weights = own_model(task.broadcast.model, task.memory)
    if query.needs_model:
        program.load(weights)
    data = clients.data(task.client_id)
    context = QueryContext(
        data=data,
        model=program.lend(),
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
        answer = query.answer(context)
        if not is_builtin(query):
            program.take_back()
            if not isinstance(answer, Answer):
                came = type(answer).__name__
                raise ValueError(f"Expected the query to return an Answer(value, floats_up, samples), but got {came}: fix it.")
        return answer
    except Exception as error:
        error.add_note(f"It happened to client {task.client_id} in round {task.round}, asked by {type(query).__name__}.")
        raise


def _train_until(clients: "Clients", task: ClientTask, num_steps: int) -> HalfTrained:
    """Take the first steps of a client's training, and keep what they lead to in case the client is selected."""
    planned, program = clients.num_steps(task), clients.program_of(task.broadcast.model)
    half = clients.train_part(task, None, min(num_steps, planned))
    assert isinstance(half, HalfTrained)  # it was stopped
    program.lend()  # for whatever the query does next
    if num_steps < planned and program.divisible:
        clients.probed.keep(task, half)
    return half

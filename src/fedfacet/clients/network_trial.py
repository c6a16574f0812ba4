"""What a network returns, tried on a few samples before it trains."""

import contextlib
import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfacet import rng, state
from fedfacet.errors import ConfigError
from fedfacet.objectives.classification import ClassificationObjective

if TYPE_CHECKING:  # it builds on this file
    from fedfacet.clients.program import Clients

log = logging.getLogger(__name__)

_ENOUGH = 32  # samples, of a batch that may be all that a client has


def check_network(clients: "Clients") -> None:
    """Have a batch pass through the networks, so that one without a logit per class is refused before it trains.

    One that ends with a softmax trains, slowly and to worse numbers, and is warned of. An objective of somebody else's may have
    a network that returns something else, as long as nobody measures it.

    Raises:
        ConfigError: naming what the network returns.
    """
    if not isinstance(clients.objective, ClassificationObjective):
        return
    own = clients.partition.indices[0]
    samples = own[: min(clients.local.batch_size, _ENOUGH)] if len(own) > 1 else own[[0, 0]]
    batch = clients.dataset.batch(samples, clients.device, clients.memory_format)
    # Compiling for a trial would be for nothing.
    as_it_is = torch.compiler.set_stance("force_eager") if clients.compile else contextlib.nullcontext()
    with rng.forked(0, "network-trial", device=clients.device), as_it_is:
        for program in clients.programs:
            before = state.clone(program.tensors)
            with program.looking():
                if program.predict_hooks is not None:
                    program.predict_hooks.before_predict({})
                z, name = program.forward(batch.x), type(program.module).__name__
            program.load(before)  # a forward pass may count something in its buffers
            check_logits(z, clients.dataset.num_classes, name)
            if (z >= 0).all() and torch.allclose(z.sum(dim=1), z.new_ones(())):
                log.warning("%s seems to return probabilities, but losses take logits: leave out its softmax.", name)


def check_logits(z: object, num_classes: int, model: str) -> None:
    """Refuse what is not a logit per class: a class too many would be counted as a class of the next group.

    Args:
        z: what the model returned for a batch, shape (B, Y) as it should be.
        num_classes: Y.
        model: its name, for the message.

    Raises:
        ConfigError: naming what came.
    """
    if isinstance(z, Tensor) and z.ndim == 2 and z.shape[1] == num_classes:
        return
    came = (
        f"a tensor of shape ({', '.join(['B', *map(str, z.shape[1:])])})" if isinstance(z, Tensor) else f"a {type(z).__name__}"
    )
    raise ConfigError(
        f"Expected {model} to return a logit for each of the {num_classes} classes, a tensor of shape (B, {num_classes}), but "
        f"it returns {came}: mend its `forward`."
    )

"""A client's personal layers in its memory, under names of their own beside whatever else it keeps."""

from collections.abc import Mapping, Set

from fedfacet import state
from fedfacet.types import Broadcast, ClientUpdate, State

_PREFIX = "personal|"


def own_model(model: State, memory: State) -> State:
    """Return a model with a client's own layers, as its memory has them, in their places."""
    own = _recalled(memory) if memory else {}
    return model | own if own else model


def all_layers(model: State, memory: Mapping[int, State]) -> State:
    """Return the global model along with the layers of every client that has its own, under ``client_<id>/<name>``."""
    own = {
        f"client_{client_id}/{name}": tensor
        for client_id, kept in sorted(memory.items())
        for name, tensor in _recalled(kept).items()
    }
    return model | own


def to_keep(tensors: State, personal: Set[str]) -> State:
    """Return copies of the personal ones among some tensors, for the client's memory."""
    kept = {_PREFIX + name: tensor for name, tensor in tensors.items() if name in personal}
    return {name: tensor.contiguous() for name, tensor in state.clone(kept).items()}


def local_model(broadcast: Broadcast, update: ClientUpdate) -> State:
    """Return a client's model after its local training: what it was sent, moved by its update, with its own layers.

    What the client did to its update before sending it (``transforms=``) is in there. Integer buffers are the broadcast's.
    """
    return state.add(broadcast.model, update.delta | update.buffers) | _recalled(update.memory)


def _recalled(memory: State) -> State:
    return {name.removeprefix(_PREFIX): tensor for name, tensor in memory.items() if name.startswith(_PREFIX)}

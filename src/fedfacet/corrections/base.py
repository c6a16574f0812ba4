"""The contract of a drift correction."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from fedfacet.types import ClientEnd, ClientStart, State


class Correction(nn.Module):
    """What restrains a client's drift from the global model: a term added to its loss. This one is none at all.

    A correction keeps what it needs in plain attributes, not in registered buffers, so that the objective's ``state_dict``
    stays the bare model.
    """

    gives: frozenset[str] = frozenset()
    """Names of what clients send along with their updates for it; some other part must need each of them.

    ``discloses`` says of what kind each is, or no disclosure policy allows it.
    """

    discloses: ClassVar[Mapping[str, str]] = {}
    """Name -> kind, of ``privacy.disclosure.KINDS``; ``UPDATE`` for what tells no more than the update does."""

    needs: frozenset[str] = frozenset()
    """Names of what the server must send along with the model; some other part must give each of them."""

    curvature: float = 0.0
    """The term's second derivative in every direction, a constant: mu of a proximal term, 0 of a linear term or of none."""

    divisible: bool = True
    """Whether a client's steps may be divided between processes: ``False`` where it keeps something that a step changes."""

    def __init__(self) -> None:
        super().__init__()  # without nn.Module's *args and **kwargs, so that a misspelt option is noticed

    def on_client_start(self, parameters: Mapping[str, Tensor], start: ClientStart) -> None:
        """Take note of the weights that a client starts from; ``parameters`` are the trainable ones, just loaded."""

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""
        return {}, {}

    def forward(self, parameters: Mapping[str, Tensor]) -> Tensor | float:
        """Return the scalar to add to the loss at the current trainable parameters."""
        return 0.0

"""A frozen base with some modules that are trained."""

from collections.abc import Sequence

from torch import nn

from fedfacet.adapters.base import Adapter, train_only


class Frozen(Adapter):
    """Freeze all but some modules: a pre-trained backbone with a trained head, say.

    Args:
        trained: names of the modules that clients train; the others neither travel nor are saved.

    Raises:
        ValueError: if there are none.
    """

    def __init__(self, *, trained: Sequence[str] = ("head",)) -> None:
        if not trained:
            raise ValueError(
                "Expected `adapter.trained` to name at least one module, but got none: name the head, for example."
            )
        self.trained = tuple(trained)

    def fit(self, model: nn.Module) -> None:
        """Freeze the rest; see ``Adapter.fit``."""
        train_only(model, self.trained, "adapter.trained")

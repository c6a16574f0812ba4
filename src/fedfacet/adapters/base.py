"""The contract of an adapter."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import nn

from fedfacet.errors import ConfigError


class Adapter(ABC):
    """Says which of a model's weights clients train, and freezes the others.

    A frozen weight is everybody's own: it is not sent, averaged or saved, and ``model_digest`` does not cover it. A checkpoint
    keeps the sha256 of all frozen weights, by which a resume knows the base again. Buffers, such as the running statistics of
    batch normalisation, are not weights: they travel.
    """

    export: ClassVar[Callable[..., None] | None] = None
    """``export(self, model, weights, folder)`` writes what was trained in a format of its library; ``None`` for nothing.

    ``model`` is as ``fit`` left it but for its trained weights, which are ``weights``.
    """

    @abstractmethod
    def fit(self, model: nn.Module) -> None:
        """Freeze a model's weights, in place, all but those that clients train; what this draws comes from torch.

        Raises:
            ConfigError: if the model has no such layers.
        """


def train_only(model: nn.Module, names: Sequence[str], setting: str) -> None:
    """Freeze a model but for some modules.

    Args:
        model: changed in place.
        names: of modules.
        setting: that names them, for the message.

    Raises:
        ConfigError: if the model has no such module, or if there is nothing in one that could be trained.
    """
    for name in names:
        try:
            found = model.get_submodule(name)
        except AttributeError:
            found = nn.Module()
        if not any(True for _ in found.parameters()):
            parts = ", ".join(child for child, part in model.named_children() if any(True for _ in part.parameters()))
            raise ConfigError(
                f"Expected `{setting}` to name modules with weights, but {type(model).__name__} has none called {name!r}: name "
                f"some of {parts}, or of what lies in them, such as backbone.fc."
            )
    model.requires_grad_(False)
    for name in names:
        model.get_submodule(name).requires_grad_(True)

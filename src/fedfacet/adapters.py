"""Which of a model's weights clients train, where that is not all of them."""

import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fedfacet.arguments import Choice, Declared, Whole, Within
from fedfacet.errors import ConfigError, first_line
from fedfacet.optional import required
from fedfacet.types import State


class Adapter(Declared, ABC):
    """Says which of a model's weights clients train, and freezes the others.

    A frozen weight is everybody's own: it is not sent, averaged or saved, and ``model_digest`` does not cover it. A checkpoint
    keeps the sha256 of all frozen weights, by which a resume knows the base again. Buffers, such as the running statistics of
    batch normalisation, are not weights: they travel.
    """

    option_group = "adapter."

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


_ADAPTER = "default"  # PEFT's name of an adapter, which its files leave out
_LAYERS = (nn.Linear, nn.Conv2d)


@dataclass(eq=False, kw_only=True)
class LoRA(Adapter):
    r"""Freeze a model, and train low-rank changes of some layers beside its head, by the package ``peft``.

    .. math:: W + \frac{\alpha}{r} B A, \qquad A \in \mathbb{R}^{r \times n}, \; B \in \mathbb{R}^{m \times r}

    A layer's weight W stays as it is. A starts at random, drawn by the run's seed, and B at 0, so that nothing is changed at
    first. Clients train A and B, and what ``modules_to_save`` names as it is.

    The server averages A and B each by itself. That is not the average of the clients' changes: the mean of all B A may
    have a rank above r, and the mean of B times the mean of A is another matrix (Sun et al., FFA-LoRA, ICLR 2024,
    arXiv:2403.12313). With ``freeze_a`` everybody keeps the A that the run began with, and the average of B is that of B A.

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, arXiv:2106.09685.

    Needs the package ``peft`` (``pip install fedfacet[lora]``). A run that ends writes ``adapter_model.safetensors`` and
    ``adapter_config.json`` into ``model/adapter/``, which ``peft.PeftModel.from_pretrained`` takes together with the base. That
    format has no buffers: running statistics of batch normalisation are in ``model.safetensors`` only.

    With ``base_dtype="bfloat16"`` the frozen weights take half the memory. A, B and what is trained whole stay in float32, and
    so do updates, their averages and digests. A layer computes in the type of its own weights; the model returns float32.

    Note: PEFT makes A and B in the type of the layer that they change, and only its ``get_peft_model`` brings them back to
    float32 (``autocast_adapter_dtype``). That wraps the model, so ``inject_adapter_in_model`` is used here, and the base is
    converted after it. Layers with buffers in floating point, such as batch normalisation, stay in float32.

    Args:
        target_modules: names of the layers that are changed, whole or their ends, as in PEFT; or a regular expression of whole
            names. ``None`` takes every linear and convolutional layer, ``Conv1D`` of transformers among them, but those of
            ``modules_to_save``, grouped convolutions, and what lies in ``nn.MultiheadAttention``, which PEFT takes as one layer
            by its own name.
        r: rank, 1 or larger.
        alpha: larger than 0.
        dropout: of the inputs of A while training, in [0, 1).
        modules_to_save: names of modules that are trained whole.
        freeze_a: whether A is frozen too.
        base_dtype: of the frozen weights, ``"float32"`` (as the model has them) or ``"bfloat16"``.
    """

    target_modules: Sequence[str] | str | None = None
    r: Annotated[int, Whole()] = 8
    alpha: Annotated[float, Within("(0, 1e9]")] = 16.0
    dropout: Annotated[float, Within("[0, 1)")] = 0.0
    modules_to_save: Sequence[str] = ("head",)
    freeze_a: bool = False
    base_dtype: Annotated[str, Choice("float32", "bfloat16")] = "float32"

    def fit(self, model: nn.Module) -> None:
        """Add A and B, and freeze the rest; see ``Adapter.fit``."""
        peft = required("peft", extra="lora", wanted_by="adapter=lora")
        train_only(model, self.modules_to_save, "adapter.modules_to_save")
        names = self._targets(model)
        try:
            config = self._config(peft, "|".join(map(re.escape, names)))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fan_in_fan_out is set to")  # by PEFT, as each layer needs it
                peft.inject_adapter_in_model(config, model)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ConfigError(
                f"Expected layers that PEFT can adapt for `adapter.target_modules`, but it says: {first_line(error)}"
            ) from None
        for name in self.modules_to_save:  # PEFT has frozen them too
            model.get_submodule(name).requires_grad_(True)
        if self.freeze_a:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and not _is_a(name))
        if self.base_dtype == "bfloat16":
            _store_frozen(model, torch.bfloat16)

    def export(self, model: nn.Module, weights: State, folder: Path) -> None:
        """Write PEFT's two files; see ``Adapter.export``."""
        from safetensors.torch import save_file

        peft = required("peft", extra="lora", wanted_by="adapter=lora")
        everything = model.state_dict()
        frozen = {name: tensor.cpu() for name, tensor in everything.items() if _is_a(name) and name not in weights}
        saved = tuple(f"{name}." for name in self.modules_to_save)
        own = {
            f"base_model.model.{name.replace(f'.{_ADAPTER}.', '.')}": tensor.contiguous()
            for name, tensor in (weights | frozen).items()
            if name in everything and (".lora_" in name or name.startswith(saved))
        }
        folder.mkdir(exist_ok=True)
        save_file(own, folder / "adapter_model.safetensors")
        changed = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
        config = self._config(peft, "|".join(map(re.escape, changed))).to_dict()
        settings = config | {"modules_to_save": list(self.modules_to_save) or None, "inference_mode": True}
        text = json.dumps(settings, indent=2, sort_keys=True, default=_plain)
        (folder / "adapter_config.json").write_text(f"{text}\n", encoding="utf-8")
        (folder / "adapter_model.safetensors").chmod((folder / "adapter_config.json").stat().st_mode)

    def _config(self, peft: Any, targets: str) -> Any:
        return peft.LoraConfig(r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=targets)

    def _targets(self, model: nn.Module) -> list[str]:
        """Return the names of the layers that are changed.

        Raises:
            ConfigError: if there are none.
        """
        wanted, saved = self.target_modules, tuple(f"{name}." for name in self.modules_to_save)
        layers = {name: part for name, part in model.named_modules() if name and not f"{name}.".startswith(saved)}
        if wanted is None:
            attention = tuple(f"{name}." for name, part in layers.items() if isinstance(part, nn.MultiheadAttention))
            usual = {name: part for name, part in layers.items() if _is_usual(part)}
            found = [name for name, part in usual.items() if getattr(part, "groups", 1) == 1 and not name.startswith(attention)]
        elif isinstance(wanted, str):
            found = [name for name in layers if re.fullmatch(wanted, name)]
        else:
            found = [name for name in layers if any(f".{name}".endswith(f".{one}") for one in wanted)]
        if not found:
            could = [name for name, part in layers.items() if _is_usual(part)]
            listed = ", ".join(could[:5]) + (f" and {len(could) - 5} more" if len(could) > 5 else "")
            remedy = f"name some of {listed}" if could else "choose adapter=frozen, or another model"
            raise ConfigError(
                f"Expected `adapter.target_modules` to name layers of {type(model).__name__} that are not trained anyway, but "
                f"{'it has none' if wanted is None else f'none matches {wanted!r}'}: {remedy}."
            )
        return found


def _is_usual(layer: nn.Module) -> bool:
    return isinstance(layer, _LAYERS) or type(layer).__name__ == "Conv1D"  # of transformers, which may not be installed


def _store_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert a model's frozen weights, in place, and have each layer compute in the type of its own weights."""
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.is_floating_point()]
        counts = any(buffer.is_floating_point() for buffer in module.buffers(recurse=False))
        for parameter in own:
            if not (parameter.requires_grad or counts or ".lora_" in f"{name}."):
                parameter.data = parameter.data.to(dtype)
        if own:
            module.register_forward_pre_hook(_as_own_weights)
    for module in (model, *model.children()):  # what a backbone says are features, which others than the head may read
        module.register_forward_hook(_as_float32)


def _as_own_weights(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype = next(parameter.dtype for parameter in module.parameters(recurse=False) if parameter.is_floating_point())
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


def _as_float32(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    return output.float() if isinstance(output, Tensor) and output.is_floating_point() else output


def _is_a(name: str) -> bool:
    return ".lora_A." in name or ".lora_embedding_A." in name


def _plain(value: object) -> object:
    """Return what JSON has in the place of PEFT's sets and enumerations."""
    return sorted(value) if isinstance(value, set | frozenset) else str(getattr(value, "value", value))

"""The random draws of a training step, made for each client by its own generator and handed to ``torch.vmap``.

A layer that draws (dropout, stochastic depth, noise) says nothing of it, so its call is caught: ``Recording`` notes what a step
draws, in order, and ``draws_of`` makes the same draws again under another client's generator. ``Replaying`` gives them to the
step in place of fresh ones. The numbers are those that the client draws by itself, bit for bit, because the same functions draw
them for tensors of the same shape and memory order.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedfacet.clients.stacked_layers import attention, convolution, group_norm

_DROPOUTS = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
_FILLS = {getattr(Tensor, name) for name in ("bernoulli_", "uniform_", "normal_", "exponential_", "log_normal_", "cauchy_")}
_MADE = {torch.rand, torch.randn, torch.randint, torch.randperm}
_MADE_LIKE = {torch.rand_like, torch.randn_like}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_NUM_SETTINGS = 7  # of a convolution called by a layer: x, weight, bias, stride, padding, dilation, groups

Draw = Callable[[], Tensor]
"""Draws once more what a step has drawn at one place, from torch's global generator."""


class _Caught(NamedTuple):
    """A call that draws.

    Attributes:
        draw: makes the draws, given an empty tensor like ``like``.
        returned: what the call returns, given the draws.
        like: has the shape and memory order that the draws depend on; ``None`` where they depend on no tensor.
    """

    draw: Callable[[Any], Tensor]
    returned: Callable[[Tensor], Tensor]
    like: Tensor | None = None


class Recording(TorchFunctionMode):
    """Notes what a step draws; the step itself runs as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call."""
        kwargs = kwargs or {}
        if (caught := _caught(func, args, kwargs)) is not None:
            self.draws.append(_again(caught))
        return func(*args, **kwargs)


class Replaying(TorchFunctionMode):
    """Gives a step the draws that are made already, and layers in forms that stack.

    In-place activations get a result of their own: in-place on a view, autograd would copy all of it.

    Args:
        draws: in the order in which ``Recording`` has noted them.
    """

    def __init__(self, draws: Sequence[Tensor]) -> None:
        super().__init__()
        self._draws: Iterator[Tensor] = iter(draws)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call, or what takes its place."""
        kwargs = kwargs or {}
        if (caught := _caught(func, args, kwargs)) is not None and (draw := next(self._draws, None)) is not None:
            return caught.returned(draw)
        if kwargs.get("inplace") and getattr(func, "__module__", "") == functional.__name__:
            kwargs = {**kwargs, "inplace": False}
        if func is functional.group_norm:
            return group_norm(args[0], args[1], kwargs["weight"], kwargs["bias"], kwargs["eps"])
        if func in _CONVOLUTIONS and len(args) == _NUM_SETTINGS and not isinstance(args[4], str):
            return convolution(func, *args)
        if func is functional.scaled_dot_product_attention and len(args) == 3 and _without_mask(kwargs):
            return attention(*args, kwargs)
        return func(*args, **kwargs)


def _without_mask(settings: dict[str, Any]) -> bool:
    return settings.get("attn_mask") is None and not settings.get("dropout_p")


def _caught(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Caught | None:
    """Return what a call draws; ``None`` where it draws nothing, or in a way that is not known here."""
    if func in _DROPOUTS:
        x, p = args[0], kwargs.get("p", 0.5)
        if not kwargs.get("training", True) or p == 0:
            return None
        return _Caught(lambda like: func(like.fill_(1), p=p, training=True), lambda draw: x * draw, x)
    if kwargs.get("generator") is not None:
        return None
    if func in _MADE:
        return _Caught(lambda _: func(*args, **kwargs), Tensor.clone)
    if func in _FILLS | _MADE_LIKE and not any(isinstance(one, Tensor) for one in (*args[1:], *kwargs.values())):
        # A copy, since what follows may write to it.
        return _Caught(lambda like: func(like, *args[1:], **kwargs), Tensor.clone, args[0])
    return None


def _again(caught: _Caught) -> Draw:
    """Return what makes a call's draws again."""
    if caught.like is None:
        return partial(caught.draw, None)
    like, device = torch.empty_like(caught.like, device="meta"), caught.like.device
    return lambda: caught.draw(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device))

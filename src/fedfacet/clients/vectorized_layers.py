"""Layers and random draws of many models side by side, for ``torch.vmap``.

The forms of layers take fewer kernels than its own.

Group normalisation is one call for all rows on an accelerator. A 1x1 convolution is a batched matrix product there. On a CPU
both, and every other convolution, are computed row by row: oneDNN's kernels for a single model use the caches best. A layer
whose weights all rows share takes the rows as one batch, and so does attention.

A layer that draws (dropout, stochastic depth, noise) says nothing of it, so its call is caught: ``Recording`` notes what a step
draws, in order, and ``_again`` makes the same draws under another client's generator. ``Replaying`` gives them to the step in
place of fresh ones. The numbers are those that the client draws by itself, bit for bit, because the same functions draw them
for tensors of the same shape and memory order.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_DROPOUTS = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
_FILLS = {getattr(Tensor, name) for name in ("bernoulli_", "uniform_", "normal_", "exponential_", "log_normal_", "cauchy_")}
_MADE = {torch.rand, torch.randn, torch.randint, torch.randperm}
_MADE_LIKE = {torch.rand_like, torch.randn_like}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_NUM_SETTINGS = 7  # of a convolution called by a layer: x, weight, bias, stride, padding, dilation, groups

Draw = Callable[[], Tensor]
"""Draws once more what a step has drawn at one place, from torch's global generator."""


def group_norm(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return ``torch.nn.functional.group_norm``; inside ``torch.vmap`` in a form that stacks."""

    def alone(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return functional.group_norm(x, num_groups, weight, bias, eps)

    def side_by_side(rows: int, dims: Sequence[int | None], *tensors: Any) -> tuple[Tensor, int]:
        x, weight, bias = (_rows_first(tensor, dim, rows) for tensor, dim in zip(tensors, dims, strict=True))
        if _row_by_row(x):
            return _each_row(alone, rows, x, weight, bias)
        # Samples first, then all rows' channels: the groups of a row are groups of these. Convolutions leave them like that.
        weight, bias = (None if part is None else part.flatten() for part in (weight, bias))
        together = functional.group_norm(x.movedim(0, 1).flatten(1, 2), rows * num_groups, weight, bias, eps)
        return together.unflatten(1, (rows, -1)), 1  # type: ignore[no-untyped-call]

    result: Tensor = _Layer.apply(alone, side_by_side, x, weight, bias)
    return result


def convolution(function: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """Return ``function(x, weight, bias, *settings)``, a convolution; inside ``torch.vmap`` in a form that stacks.

    Args:
        function: ``torch.conv1d``, ``conv2d`` or ``conv3d``.
        x: inputs, shape (B, C, ...).
        weight: of the layer.
        bias: of the layer.
        settings: stride, padding, dilation and groups.
    """

    def alone(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return function(x, weight, bias, *settings)

    def side_by_side(rows: int, dims: Sequence[int | None], x: Any, weight: Any, bias: Any) -> tuple[Any, int]:
        x = _rows_first(x, dims[0], rows)
        if dims[1] is None and dims[2] is None:
            return alone(x.flatten(0, 1), weight, bias).unflatten(0, (rows, -1)), 0  # type: ignore[no-untyped-call]
        weight, bias = _rows_first(weight, dims[1], rows), _rows_first(bias, dims[2], rows)
        if _row_by_row(x):
            return _each_row(alone, rows, x, weight, bias)
        if _is_product(weight, settings):
            columns = x.movedim(2, 1).flatten(2)  # (rows, C, B pixels)
            products: Tensor = _Product.apply(weight.flatten(2), columns)
            products = products if bias is None else products + bias[:, :, None]
            return products.unflatten(2, (x.shape[1], *x.shape[3:])).movedim(1, 2), 0
        flat = None if bias is None else bias.flatten()
        *few, groups = settings
        together = function(x.movedim(0, 1).flatten(1, 2), weight.flatten(0, 1), flat, *few, rows * groups)
        return together.unflatten(1, (rows, -1)), 1  # type: ignore[no-untyped-call]

    result: Tensor = _Layer.apply(alone, side_by_side, x, weight, bias)
    return result


def attention(query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Tensor:
    """Return ``torch.nn.functional.scaled_dot_product_attention``; inside ``torch.vmap`` in a form that stacks."""
    alone = partial(functional.scaled_dot_product_attention, **settings)

    def side_by_side(rows: int, dims: Sequence[int | None], *tensors: Tensor) -> tuple[Any, int]:
        whole = (_rows_first(part, dim, rows).flatten(0, 1) for part, dim in zip(tensors, dims, strict=True))
        return alone(*whole).unflatten(0, (rows, -1)), 0  # type: ignore[no-untyped-call]

    result: Tensor = _Layer.apply(alone, side_by_side, query, key, value)
    return result


class _Layer(torch.autograd.Function):
    """A function of tensors, and what ``torch.vmap`` computes in its place.

    Its ``backward`` serves transforms such as ``torch.func.grad``; otherwise autograd sees what ``vmap`` computes.
    """

    @staticmethod
    def forward(alone: Any, side_by_side: Any, *tensors: Tensor | None) -> Tensor:
        result: Tensor = alone(*tensors)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.alone, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        given = ctx.saved_tensors

        def again(*tensors: Tensor) -> Tensor:
            result: Tensor = ctx.alone(*_filled(given, tensors))
            return result

        return None, None, *_filled(given, vjp(again, *(one for one in given if one is not None))[1](gradient))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], alone: Any, side_by_side: Any, *tensors: Any) -> Any:
        return side_by_side(info.batch_size, in_dims[2:], *tensors)


class _Product(torch.autograd.Function):
    """A batched matrix product that rounds as the convolutions do which it stands for: on a GPU usually in TF32."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        with _as_convolutions_round():
            return torch.bmm(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        left, right = ctx.saved_tensors
        with _as_convolutions_round():
            return torch.bmm(gradient, right.mT), torch.bmm(left.mT, gradient)


@contextlib.contextmanager
def _as_convolutions_round() -> Iterator[None]:
    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _row_by_row(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _is_product(weight: Tensor, settings: tuple[Any, ...]) -> bool:
    """Tell whether a convolution takes every pixel by itself."""
    stride, padding, dilation, groups = settings
    ones = all(set(_tuple(setting)) <= {1} for setting in (stride, dilation, weight.shape[3:]))
    return ones and groups == 1 and set(_tuple(padding)) <= {0}


def _tuple(setting: Any) -> tuple[Any, ...]:
    return tuple(setting) if isinstance(setting, tuple | list | torch.Size) else (setting,)


def _rows_first(tensor: Any, dim: int | None, rows: int) -> Any:
    if tensor is None:
        return None
    return tensor.expand(rows, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _each_row(alone: Callable[..., Tensor], rows: int, x: Tensor, *others: Tensor | None) -> tuple[Tensor, int]:
    parts = zip(x, *([None] * rows if one is None else one for one in others), strict=True)
    return torch.stack([alone(*part) for part in parts]), 0


def _filled(given: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Any]:
    """Return ``tensors`` in the places of those that are given, and ``None`` in the others."""
    left = iter(tensors)
    return [None if one is None else next(left) for one in given]


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

"""Layers of many models side by side, in forms that take fewer kernels than ``torch.vmap``'s own.

Group normalisation is one call for all rows on an accelerator. A 1x1 convolution is a batched matrix product there. On a CPU
both, and every other convolution, are computed row by row: oneDNN's kernels for a single model use the caches best. A layer
whose weights all rows share takes the rows as one batch, and so does attention.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn import functional


def group_norm(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return ``torch.nn.functional.group_norm``; inside ``torch.vmap`` in a form that stacks."""
    result: Tensor = _GroupNorm.apply(x, num_groups, weight, bias, eps)
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
    result: Tensor = _Convolution.apply(function, x, weight, bias, settings)
    return result


def attention(query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Tensor:
    """Return ``torch.nn.functional.scaled_dot_product_attention``; inside ``torch.vmap`` in a form that stacks."""
    result: Tensor = _Attention.apply(query, key, value, settings)
    return result


class _GroupNorm(torch.autograd.Function):
    """Its ``backward`` serves transforms such as ``torch.func.grad``; otherwise autograd sees what ``vmap`` computes."""

    @staticmethod
    def forward(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return functional.group_norm(x, num_groups, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.num_groups, weight, bias, ctx.eps = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        given = ctx.saved_tensors

        def again(*tensors: Tensor) -> Tensor:
            x, weight, bias = _filled(given, tensors)
            return functional.group_norm(x, ctx.num_groups, weight, bias, ctx.eps)

        x, weight, bias = _gradients(again, given, gradient)
        return x, None, weight, bias, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
        rows = info.batch_size
        x, weight, bias = (_rows_first(part, in_dims[i], rows) for part, i in ((x, 0), (weight, 2), (bias, 3)))
        if _row_by_row(x):
            parts = zip(x, _each(weight, rows), _each(bias, rows), strict=True)
            return torch.stack([functional.group_norm(x, num_groups, w, b, eps) for x, w, b in parts]), 0
        # Samples first, then all rows' channels: the groups of a row are groups of these. Convolutions leave them like that.
        weight, bias = (None if part is None else part.flatten() for part in (weight, bias))
        together = functional.group_norm(x.movedim(0, 1).flatten(1, 2), rows * num_groups, weight, bias, eps)
        return together.unflatten(1, (rows, -1)), 1  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """As ``_GroupNorm``."""

    @staticmethod
    def forward(function: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]) -> Tensor:
        result: Tensor = function(x, weight, bias, *settings)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.function, x, weight, bias, ctx.settings = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        given = ctx.saved_tensors

        def again(*tensors: Tensor) -> Tensor:
            result: Tensor = ctx.function(*_filled(given, tensors), *ctx.settings)
            return result

        return None, *_gradients(again, given, gradient), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Any, x: Tensor, weight: Tensor, bias: Any, settings: Any) -> Any:
        rows, (_, of_x, of_weight, of_bias, _) = info.batch_size, in_dims
        x = _rows_first(x, of_x, rows)
        if of_weight is None and of_bias is None:
            return function(x.flatten(0, 1), weight, bias, *settings).unflatten(0, (rows, -1)), 0
        weight, bias = _rows_first(weight, of_weight, rows), _rows_first(bias, of_bias, rows)
        if _row_by_row(x):
            parts = zip(x, weight, _each(bias, rows), strict=True)
            return torch.stack([function(*part, *settings) for part in parts]), 0
        if _is_product(weight, settings):
            columns = x.movedim(2, 1).flatten(2)  # (rows, C, B pixels)
            products: Tensor = _Product.apply(weight.flatten(2), columns)
            products = products if bias is None else products + bias[:, :, None]
            return products.unflatten(2, (x.shape[1], *x.shape[3:])).movedim(1, 2), 0
        flat = None if bias is None else bias.flatten()
        *few, groups = settings
        together = function(x.movedim(0, 1).flatten(1, 2), weight.flatten(0, 1), flat, *few, rows * groups)
        return together.unflatten(1, (rows, -1)), 1


class _Attention(torch.autograd.Function):
    """As ``_GroupNorm``."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, **settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.settings = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        again = partial(functional.scaled_dot_product_attention, **ctx.settings)
        return *_gradients(again, ctx.saved_tensors, gradient), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], query: Tensor, key: Tensor, value: Tensor, settings: Any) -> Any:
        rows = info.batch_size
        whole = (_rows_first(part, dim, rows).flatten(0, 1) for part, dim in zip((query, key, value), in_dims, strict=False))
        together = functional.scaled_dot_product_attention(*whole, **settings)
        return together.unflatten(0, (rows, -1)), 0  # type: ignore[no-untyped-call]


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


def _each(tensor: Tensor | None, rows: int) -> Any:
    return [None] * rows if tensor is None else tensor


def _filled(given: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Any]:
    """Return ``tensors`` in the places of those that are given, and ``None`` in the others."""
    left = iter(tensors)
    return [None if one is None else next(left) for one in given]


def _gradients(again: Callable[..., Tensor], given: tuple[Any, ...], gradient: Tensor) -> list[Any]:
    return _filled(given, vjp(again, *(one for one in given if one is not None))[1](gradient))

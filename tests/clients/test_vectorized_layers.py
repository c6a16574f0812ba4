"""Each form of a layer, also those that only an accelerator takes, against torch's own row by row, in double precision."""

import pytest
import torch
from torch.nn import functional

from fedfacet import rng
from fedfacet.clients import vectorized_layers
from fedfacet.clients.vectorized_layers import attention, convolution, group_norm

ROWS = 3


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def conv(dim, channels=(4, 6), kernel=1, groups=1, **settings):
    """Return the stacked and the plain form of a convolution, and its tensors' shapes."""
    function = getattr(torch, f"conv{dim}d")
    arguments = {"stride": 1, "padding": 0, "dilation": 1, **settings}
    values = [arguments[name] for name in ("stride", "padding", "dilation")] + [groups]
    shapes = [(5, channels[0], *[6] * dim), (channels[1], channels[0] // groups, *[kernel] * dim), (channels[1],)]
    return lambda *tensors: convolution(function, *tensors, *values), lambda *tensors: function(*tensors, *values), shapes


LAYERS = {
    "group norm": (
        lambda x, w, b: group_norm(x, 2, w, b, 1e-5),
        lambda x, w, b: functional.group_norm(x, 2, w, b, 1e-5),
        [(5, 4, 3, 3), (4,), (4,)],
    ),
    "pointwise": conv(2),
    "pointwise in one dimension": conv(1),
    "pointwise with a stride": conv(2, stride=2),
    "pointwise, padded": conv(2, padding=1),
    "three by three": conv(2, kernel=3, padding=1),
    "depthwise": conv(2, (4, 4), 3, 4, padding=1),
    "in groups": conv(2, (4, 6), 3, 2, dilation=2),
    "three dimensions": conv(3, kernel=2),
    "attention": (
        lambda q, k, v: attention(q, k, v, {"is_causal": True}),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(5, 2, 4, 3)] * 3,
    ),
}


@pytest.mark.parametrize("shared", [None, "weights"])
@pytest.mark.parametrize("form", ["row by row", "together"])
@pytest.mark.parametrize("layer", LAYERS)
def test_stacked_and_row_by_row_are_the_same(layer, form, shared, monkeypatch):
    """Values and gradients, with weights of each row's own or with the same for all, as frozen ones are."""
    monkeypatch.setattr(vectorized_layers, "_row_by_row", lambda x: form == "row by row")
    stacked, plain, (of_x, *others) = LAYERS[layer]
    rows = (None if shared else 0,) * len(others)
    with rng.forked(0, "layers"):
        tensors = [normal(ROWS, *of_x), *(normal(*shape) if shared else normal(ROWS, *shape) for shape in others)]
    for tensor in tensors:
        tensor.requires_grad_()
    ours = torch.vmap(stacked, in_dims=(0, *rows))(*tensors)
    own = [
        [tensor[row] if dim == 0 else tensor for tensor, dim in zip(tensors, (0, *rows), strict=True)] for row in range(ROWS)
    ]
    theirs = torch.stack([plain(*one) for one in own])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    with rng.forked(1, "layers"):
        weights = normal(*theirs.shape)
    for our, their in zip(*(torch.autograd.grad((out * weights).sum(), tensors) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own attention
@pytest.mark.parametrize("layer", LAYERS)
def test_a_gradient_inside_a_row(layer):
    """As SAM takes it: ``torch.func.grad`` under ``torch.vmap``."""
    stacked, plain, shapes = LAYERS[layer]
    with rng.forked(0, "layers"):
        tensors = [normal(ROWS, *shape) for shape in shapes]
    ours, theirs = (
        torch.vmap(torch.func.grad(lambda *parts, of=of: of(*parts).square().sum(), argnums=(0, 1, 2)))(*tensors)
        for of in (stacked, plain)
    )
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-12, atol=1e-11)

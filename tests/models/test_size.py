"""A model that does not fit is refused before any of it is made."""

from functools import partial

import pytest
import torch
from torch import nn

from fedfacet.errors import ConfigError
from fedfacet.machine_memory import available_memory
from fedfacet.models.checks import check_size
from fedfacet.models.mlp import MLP
from fedfacet.models.small_cnn import SmallCNN

CNN = partial(SmallCNN, 2, (3, 8, 8))


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        # Weights and biases of both convolutions and both linear layers, 4 bytes a number, 4 times.
        (partial(CNN, width=100_000), r"2,880,867,203,104 bytes \(4 copies of its weights\)"),
        (partial(CNN, hidden=2**31), "4,501,125,807,648 bytes"),
        *((partial(CNN, width=width), "a tensor that is too large for any") for width in (2**33, 2**63, 10**30)),
        (partial(MLP, 2, (30,), hidden=[2**31, 2**31]), "a tensor that is too large for any"),
    ],
)
def test_what_does_not_fit_is_refused(make, needed):
    with pytest.raises(ConfigError, match=rf"Expected `model=x` to fit into memory, but .*{needed}.*: make it smaller\.$"):
        check_size(make, "`model=x`")


def test_four_copies_must_fit(monkeypatch):
    """Of parameters, tied ones once, and buffers."""
    linear = nn.Linear(10, 10, bias=False)
    model = nn.Sequential(linear, linear, nn.BatchNorm1d(10, affine=False))
    bytes_once = 10 * 10 * 4 + 2 * 10 * 4 + 8
    for available, refused in ((4 * bytes_once, False), (4 * bytes_once - 1, True)):
        monkeypatch.setattr("fedfacet.models.checks.available_memory", lambda available=available: available)
        if refused:
            with pytest.raises(ConfigError, match=f"takes {4 * bytes_once:,} bytes .* and {available:,} are available"):
                check_size(lambda: nn.Sequential(*model), "`model=x`")
        else:
            check_size(lambda: nn.Sequential(*model), "`model=x`")


@pytest.mark.parametrize(("dtype", "needed", "copies"), [
    (torch.float32, 64 * 64 * 4 + 4 * 64 * 2 * 4, "4 copies of what is trained, 1 of what is frozen"),
    (torch.bfloat16, 64 * 64 * 4 + 64 * 2 * 4, "before its weights are frozen"),
])  # fmt: skip
def test_what_is_frozen_must_fit_once(monkeypatch, dtype, needed, copies):
    """In the type that it is stored in; and the model as it is made, before that."""

    def fit(model):
        model[0].to(dtype).requires_grad_(False)

    def make():
        return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2, bias=False))

    monkeypatch.setattr("fedfacet.models.checks.available_memory", lambda: needed)
    check_size(make, "`model=x`", fit)
    monkeypatch.setattr("fedfacet.models.checks.available_memory", lambda: needed - 1)
    with pytest.raises(ConfigError, match=rf"training it takes {needed:,} bytes \({copies}\)"):
        check_size(make, "`model=x`", fit)


def test_what_cannot_be_told_is_let_through():
    """The model's own refusal, lazy layers, and what has no counterpart without memory: making the model says what is wrong."""
    before = torch.get_rng_state()
    for make in (
        partial(CNN, width=0),
        partial(nn.LazyLinear, 3),
        lambda: nn.Linear(int(torch.ones(1).item()), 2),
        lambda: nn.Linear(2, 2).load_state_dict({}),
    ):
        check_size(make, "`model=x`")
    assert torch.equal(torch.get_rng_state(), before)


def test_some_memory_is_available():
    assert 2**20 < available_memory() < 2**50

"""Which parts of the user's own are known to draw from torch's generators alone, so that no other is seeded for each client."""

import functools
import random

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet.builtin import draws_by_torch


def noisy(x):
    return x * random.random()


def seven():
    return 7


class Plain(nn.Module):
    """A network as most are: what it names is torch's, plain values, its own, or a function of that kind."""

    scale = 3.0

    def __init__(self, **own):
        super().__init__()
        self.__dict__.update(own, activation=functional.relu, sizes={"a": [1, 2]})

    @property
    def doubled(self):
        return 2 * self.scale + seven()

    @staticmethod
    def dropped(x, share=0.5):
        return functional.dropout(x, share)

    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"no {x}")
        return super().__call__(self.dropped(x) * self.doubled * sum(one for one in range(3)))


class Whole(L.LightningModule):
    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.network = Plain()

    def training_step(self, batch, index):
        self.log("loss", loss := functional.cross_entropy(self.network(batch[0]), batch[1]))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByNumpy(Plain):
    def forward(self, x):
        return x * np.random.rand()  # noqa: NPY002


class ByAnImport(Plain):
    def forward(self, x):
        from random import random as number

        return x * number()


class ByAFunction(Plain):
    def forward(self, x):
        return noisy(x)


class ByACodeWithin(Plain):
    def forward(self, x):
        return sum((lambda one: one * random.random())(x) for _ in range(2))


class ByAName(Plain):
    def forward(self, x):
        return x * __import__("random").random()


class ByAnInheritedMethod(ByNumpy):
    dropped = None


class ByAProperty(Plain):
    @property
    def doubled(self):
        return random.random()


def closing_over(function):
    return lambda x: function(x)


def hooked(module):
    module.register_forward_hook(lambda *_: random.random())
    return module


def name_of(part):
    return getattr(part, "__name__", type(part).__name__)


@pytest.mark.parametrize(
    "part", [Plain(), Whole(), nn.Dropout(), nn.Linear(2, 2), functional.cross_entropy, seven], ids=name_of
)
def test_code_that_names_nothing_else_is_known_to(part):
    assert draws_by_torch(part)


@pytest.mark.parametrize(
    "part",
    [
        *[kind() for kind in (ByNumpy, ByAnImport, ByAFunction, ByACodeWithin, ByAName, ByAnInheritedMethod, ByAProperty)],
        Plain(own=random.Random(3)),
        Plain(own=random.random),
        Plain(forward=noisy),
        Plain(hidden=[nn.Sequential(ByNumpy())]),
        Plain(hidden={"a": functools.partial(noisy)}),
        Plain(hidden=closing_over(noisy)),
        hooked(Plain()),
        hooked(nn.Linear(2, 2)),
        noisy,
        functools.partial(noisy),
    ],
    ids=name_of,
)
def test_code_that_may_lead_elsewhere_is_not(part):
    assert not draws_by_torch(part)

"""What the trial lets pass, and what it refuses and how it says so."""

from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torchvision.ops import StochasticDepth

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.vectorized_stack import CannotStackError
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.clients.vectorized_trial import try_out
from fedfacet.corrections import Correction, ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective, cross_entropy
from fedfacet.types import Broadcast, ClientTask


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Counter(nn.Module):
    """Puts a new buffer in the place of the old one instead of writing to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + x.detach().mean()
        return x


def network(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *layers, nn.Linear(8, 2))


@pytest.fixture
def attempt(tiny_clients):
    """Return a function: objective -> what a trial with its first client returns."""

    def make(objective, **more):
        settings = {name: more.pop(name) for name in ("precision", "compile") if name in more}
        clients = replace(tiny_clients(objective=objective, local=LocalTraining(batch_size=4), **more), **settings)
        model = state.clone(clients.program.module.state_dict())
        return try_out(StackedTraining(clients), ClientTask(0, 1, 0, Broadcast(model)))

    return make


@pytest.mark.parametrize(
    "layers",
    [
        (nn.ReLU(),),
        (nn.BatchNorm1d(8),),
        (nn.LayerNorm(8), nn.GELU()),
        (Counter(),),
        (nn.Dropout(0.0),),
        (nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 1), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(2, 8)),
    ],
    ids=lambda layers: type(layers[0]).__name__,
)
def test_what_can_be_stacked(layers, attempt):
    attempt(ClassificationObjective(network(*layers)))
    attempt(ClassificationObjective(network(*layers), correction=ProximalCorrection(mu=0.01)))


def test_it_measures_what_a_sample_needs(attempt):
    small = attempt(ClassificationObjective(nn.Sequential(nn.Flatten(), nn.Linear(16, 2))))
    large = attempt(ClassificationObjective(nn.Sequential(nn.Flatten(), nn.Linear(16, 1000), nn.Tanh(), nn.Linear(1000, 2))))
    assert 4 * 16 <= small < 1000
    assert large > small + 4 * 1000


def test_global_generators_and_gradients_are_left_alone(attempt):
    objective = ClassificationObjective(network(nn.ReLU()), correction=ProximalCorrection(mu=1.0))
    before = torch.get_rng_state()
    attempt(objective)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in objective.parameters())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.2),
        StochasticDepth(0.5, mode="row"),
        Lambda(lambda x: x + torch.randn_like(x)),
        Lambda(lambda x: x * torch.rand(8)),
    ],
    ids=["dropout", "stochastic depth", "noise like an input", "noise of a given shape"],
)
def test_layers_that_draw(layer, attempt):
    attempt(ClassificationObjective(network(layer)))


@pytest.mark.parametrize("layer", [nn.RReLU(), nn.AlphaDropout(0.2)], ids=lambda layer: type(layer).__name__)
def test_layers_that_draw_in_an_unknown_way(layer, attempt):
    """Beside one whose draws are known, which must not be blamed."""
    with pytest.raises(CannotStackError, match=rf"draws do not depend on the data, but those of {type(layer).__name__} may"):
        attempt(ClassificationObjective(network(nn.Dropout(0.2), layer)))


def test_a_loss_that_draws(attempt):
    def noisy(logits, batch):
        return cross_entropy(logits, batch) * torch.rand(())

    attempt(ClassificationObjective(network(), loss=noisy))


def test_draws_of_another_library(attempt):
    def noisy(logits, batch):
        return cross_entropy(logits, batch) * np.random.rand()  # noqa: NPY002

    with pytest.raises(CannotStackError, match="but a step draws by numpy's or Python's"):
        attempt(ClassificationObjective(network(), loss=noisy))


def test_notes_that_cannot_be_replaced(attempt):
    class Fixed(Correction):
        def on_client_start(self, parameters, start):
            self.anchors = tuple(parameter.detach().clone() for parameter in parameters.values())

    with pytest.raises(CannotStackError, match=r"but correction\.anchors\.0 is in a tuple"):
        attempt(ClassificationObjective(network(), correction=Fixed()))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2 if x.mean() > 0 else x, lambda x: x * x.mean().item(), lambda x: x[x > 0].sum() + x],
    ids=["branches on values", "reads a value", "picks by value"],
)
def test_layers_that_vmap_cannot_take(function, attempt):
    with pytest.raises(CannotStackError, match=r"but Lambda cannot be \(.+\)$"):
        attempt(ClassificationObjective(network(Lambda(function))))


def test_a_batch_norm_that_counts_in_python(attempt):
    with pytest.raises(CannotStackError, match="BatchNorm1d"):
        attempt(ClassificationObjective(network(nn.BatchNorm1d(8, momentum=None))))


def test_a_loss_that_vmap_cannot_take(attempt):
    def picky(logits, batch):
        return cross_entropy(logits, batch) * (1 if logits.max() > 0 else 2)

    with pytest.raises(CannotStackError, match=r"ClassificationObjective\.training_step cannot"):
        attempt(ClassificationObjective(network(), loss=picky))


def test_parameters_known_by_another_way(attempt):
    with rng.forked(0, "weights"):  # or chance would say whether a step away changes the norm enough
        model = network(nn.ReLU())
    weight = model[1].weight

    def ridge(logits, batch):
        return cross_entropy(logits, batch) + 1e-6 * weight.square().sum()

    with pytest.raises(CannotStackError, match="from elsewhere"):
        attempt(ClassificationObjective(model, loss=ridge))
    detached = weight.detach()
    with pytest.raises(CannotStackError, match=r"side by side their (losses|gradients) differ"):
        attempt(
            ClassificationObjective(
                model, loss=lambda logits, batch: cross_entropy(logits + detached.sum(), batch) * detached.norm()
            )
        )


@pytest.mark.parametrize("divisible", [False, None, True])
def test_objectives_of_another_kind(divisible, attempt):
    """They must say that nothing outlives a step; the trial sees the rest."""

    class Foreign(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network(nn.Tanh())
            if divisible is not None:
                self.divisible = divisible

        def training_step(self, batch, batch_idx):
            return {"loss": cross_entropy(self.model(batch.x), batch)}

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    if divisible:
        attempt(Foreign())
    else:
        with pytest.raises(CannotStackError, match="Foreign does not say"):
            attempt(Foreign())


def test_buffers_that_are_in_no_state_dict(attempt):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("angles", torch.ones(8), persistent=False)

        def forward(self, x):
            return x * self.angles

    with pytest.raises(CannotStackError, match="but some are `persistent=False`"):
        attempt(ClassificationObjective(network(Rotary())))


def test_compiled_models(attempt):
    with pytest.raises(CannotStackError, match="compiled"):
        attempt(ClassificationObjective(network()), compile=True)


def test_half_precision(attempt):
    attempt(ClassificationObjective(network(nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8))), precision="bf16-mixed")


def test_clients_of_a_single_sample(attempt):
    attempt(ClassificationObjective(network()), matrices=([[1, 0], [0, 0]], [[1, 1], [1, 1]]))
    assert np.isfinite(attempt(ClassificationObjective(network())))

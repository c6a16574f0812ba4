"""Whatever passes the validator, no aggregator trips over it: it makes a finite model, or one sentence says why not."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import BadUpdateError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.selectors.all import AllSelector
from fedfacet.types import ClientUpdate

SIZES = (0.0, 1e-45, 1e-30, 1e-8, 1.0, 1e4, 1e19, 1e38, 3.4e38)
LARGER = (1e-320, 1e-200, 1e154, 1e300, 1.7e308)
"""What float64 has besides."""


class CastingCNN(SmallCNN):
    """Takes inputs to the type of its weights, as queries ask a model of any type."""

    def forward(self, x):
        return super().forward(x.to(self.head.weight.dtype))


class Sending(SequentialEngine):
    """Hands over updates that nobody trained."""

    updates = ()

    def run(self, tasks):
        return iter(self.updates)


@pytest.fixture(scope="module")
def clients_of(tiny_clients):
    """Return a function: the dtype of a federation's model -> its clients."""

    def make(dtype):
        with rng.forked(0, "weights"):
            model = CastingCNN(2, (1, 4, 4), width=2, hidden=4)
        return tiny_clients(objective=ClassificationObjective(model.to(dtype)), local=LocalTraining(batch_size=8))

    return make


@st.composite
def bundles(draw, like):
    """Tensors of drawn sizes in drawn directions; constant ones and equal ones among them."""
    tensors = {}
    for name, tensor in like.items():
        sizes = SIZES + LARGER if tensor.dtype == torch.float64 else SIZES
        size, kind = draw(st.sampled_from(sizes)), draw(st.sampled_from(["constant", "negative", "drawn"]))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 3)))
        if kind == "drawn":
            tensors[name] = (
                (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1).mul(size).to(tensor.dtype)
            )
        else:
            tensors[name] = torch.full_like(tensor, size if kind == "constant" else -size)
    return tensors


COUNTS = st.sampled_from([1, 2, 10**6, 2**53])


@st.composite
def rounds(draw, facts, extras):
    """The updates of one round: client after client, sometimes one and the same twice over."""
    model = facts.model
    updates = []
    for client_id in range(facts.num_clients):
        if updates and draw(st.booleans()):
            bundle = updates[-1].delta, updates[-1].buffers, updates[-1].extras
        else:
            parts = ({name: model[name] for name in names} for names in (facts.parameters, facts.buffers))
            bundle = tuple(draw(bundles(like)) for like in (*parts, extras))
        updates.append(
            ClientUpdate(
                client_id,
                *bundle[:2],
                num_samples=draw(COUNTS),
                num_steps=draw(COUNTS),
                step_weight=draw(st.sampled_from([5e-324, 1e-300, 1.0, 1e300, 1.7e308])),
                metrics={"loss_sum": draw(st.sampled_from([-1.7e308, 0, 1.7e308, 10**308])), "num_seen": draw(COUNTS)},
                extras=bundle[2],
            )
        )
    return updates


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=["float32", "float64"]
)
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])  # what fails is small enough as it is
@given(data=st.data())
def test_a_valid_update_makes_a_finite_model_or_one_sentence(
    aggregator_option, make_part, clients_of, tiny_federation, dtype, data
):
    engine, clients = Sending(device="cpu"), clients_of(dtype)
    aggregator = make_part("aggregator", aggregator_option)
    federation = tiny_federation(aggregator=aggregator, clients=clients, engine=engine, selector=AllSelector(), cohort_size=4)
    for round in (1, 2):
        before = federation.state
        engine.updates = data.draw(rounds(clients.facts, aggregator.extras(clients.facts)))
        try:
            result = federation.run_round()
        except BadUpdateError as error:
            message = str(error)
            assert message.startswith(
                (
                    *(f"Expected a finite model after round {round}, but ", "Expected updates with inner products"),
                    # On a model that a round of such updates has made.
                    *(
                        f"Expected an answer to the query {question} that counts from client 0 in round 2, but its {question} "
                        for question in ("local_loss", "group_losses", "group_scores")
                    ),
                )
            )
            assert "\n" not in message
            assert federation.state is before
            break
        assert result.arrived == (0, 1, 2, 3)
        assert state.all_finite(federation.state.model)
        assert not math.isnan(result.metrics["train/loss"])

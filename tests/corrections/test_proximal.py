import pytest
import torch

from fedfacet.corrections import Correction, ProximalCorrection
from fedfacet.types import Broadcast, ClientEnd, ClientStart


@pytest.fixture
def parameters():
    return {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor([[3.0]], requires_grad=True)}


def started(correction, parameters):
    correction.on_client_start(parameters, ClientStart(Broadcast({}), {}, num_steps=3, lr=0.1))
    return correction


def test_half_mu_times_the_squared_distance_over_all_parameters(parameters):
    correction = started(ProximalCorrection(mu=0.5), parameters)
    assert correction(parameters) == 0
    moved = {"a": parameters["a"] + torch.tensor([3.0, 0.0]), "b": parameters["b"] - 4.0}
    assert correction(moved).item() == pytest.approx(0.5 / 2 * (9 + 16))  # the unsquared norm would give 0.25 * 5


def test_its_gradient_is_mu_times_the_distance_in_every_batch(parameters):
    """The released code's anchor was an iterator, used up by the first batch, where the distance is zero."""
    correction = started(ProximalCorrection(mu=0.5), parameters)
    for shift in (1.0, 2.0, 3.0):
        moved = {name: (tensor.detach() + shift).requires_grad_() for name, tensor in parameters.items()}
        correction(moved).backward()
        assert moved["a"].grad.tolist() == pytest.approx([0.5 * shift] * 2)
        assert moved["b"].grad.tolist() == [pytest.approx([0.5 * shift])]


def test_the_anchor_does_not_move_with_the_weights(parameters):
    correction = started(ProximalCorrection(mu=2.0), parameters)
    with torch.no_grad():
        parameters["a"] += 1.0
    assert correction(parameters).item() == pytest.approx(2.0)


def test_the_next_client_has_its_own_anchor(parameters):
    correction = started(ProximalCorrection(mu=2.0), parameters)
    with torch.no_grad():
        parameters["a"] += 1.0
    assert started(correction, parameters)(parameters) == 0


def test_without_a_federation_and_with_mu_zero_there_is_no_term(parameters):
    assert ProximalCorrection(mu=1.0)(parameters) == 0
    assert started(ProximalCorrection(mu=0.0), parameters)({"a": parameters["a"] + 9, "b": parameters["b"]}) == 0


@pytest.mark.parametrize("correction", [Correction(), ProximalCorrection(mu=1.0)], ids=["none", "proximal"])
def test_nothing_is_sent_or_kept(correction, parameters):
    correction = started(correction, parameters)
    assert correction(parameters) == 0, "at the start"
    assert correction.on_client_end(ClientEnd({}, 3, 0.1, 3.0)) == ({}, {})
    assert correction.gives == correction.needs == frozenset()


def test_its_curvature_is_mu():
    assert (Correction().curvature, ProximalCorrection(mu=0.7).curvature) == (0.0, 0.7)


def test_the_anchor_is_not_part_of_a_state_dict(parameters):
    assert started(ProximalCorrection(mu=1.0), parameters).state_dict() == {}


@pytest.mark.parametrize("mu", [-0.1, float("nan")])
def test_a_negative_mu_is_refused(mu):
    with pytest.raises(ValueError, match="Expected `mu` to be 0 or larger"):
        ProximalCorrection(mu=mu)

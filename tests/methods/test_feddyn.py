"""FedDyn on parabolas, against the paper's algorithm written down once more in numpy."""

import numpy as np
import pytest

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.methods.feddyn import FedDyn, FedDynCorrection
from fedfacet.participation import Dropouts, Stragglers
from fedfacet.schedulers import StepScheduler
from fedfacet.selectors.uniform import UniformSelector

ALPHA = 2.0


@pytest.fixture
def feddyn(parabolas):
    def make(**settings):
        return parabolas.federate(correction=FedDynCorrection(alpha=ALPHA), aggregator=FedDyn(), **settings)

    return make


def gradients_kept(federation):
    """Return every client's lambda_k, zero for those that have none yet."""
    kept = [federation.state.memory.get(client_id, {}) for client_id in range(4)]
    return np.array([memory["feddyn/point"].numpy() if memory else np.zeros(16) for memory in kept])


@pytest.mark.parametrize(("selector", "rounds"), [(None, 30), (UniformSelector(), 90)])
def test_it_settles_at_the_joint_optimum_where_fedavg_does_not(selector, rounds, feddyn, parabolas, settled_fedavg):
    """For two clients of four in a round too, and though five steps do not solve a client's problem exactly."""
    federation = feddyn(steps=5, **({"selector": selector} if selector else {}))
    for _ in range(rounds):
        federation.run_round()
    assert parabolas.point(federation) == pytest.approx(parabolas.optimum, abs=1e-6)
    if selector is None:
        fedavg, settled = parabolas.federate(steps=5, aggregator=FedAvg()), settled_fedavg(0.1, 5)
        for _ in range(rounds):
            fedavg.run_round()
        assert parabolas.point(fedavg) == pytest.approx(settled, abs=1e-6)
        assert np.abs(settled - parabolas.optimum).max() > 0.1


def test_where_a_client_solves_its_problem_it_keeps_the_gradient_at_what_it_found(feddyn, parabolas):
    """The minimum of F_k(w) - <lambda_k, w> + alpha / 2 ||w - w_g||^2 is where H_k (w - c_k) = lambda_k - alpha (w - w_g)."""
    federation = feddyn(steps=150, lr=0.15, selector=UniformSelector())
    for _ in range(3):
        w, kept = parabolas.point(federation), gradients_kept(federation)
        result = federation.run_round()
        for k in result.arrived:
            curvature, centre = parabolas.curvatures[k], parabolas.centres[k]
            found = (curvature * centre + kept[k] + ALPHA * w) / (curvature + ALPHA)
            assert gradients_kept(federation)[k] == pytest.approx(parabolas.gradient(k, found), abs=1e-9)
    assert federation.state.participation_counts.max() > 1


PARTICIPATION = {
    "everybody": {},
    "two of four": {"selector": UniformSelector()},
    "dropouts": {"participation": Dropouts(away_probability=0.3, dropout_probability=0.3)},
    "stragglers": {"participation": Stragglers(straggler_probability=0.8), "selector": UniformSelector()},
}


@pytest.mark.parametrize("who", PARTICIPATION)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1.0), (0.5, 0.8)])
def test_it_is_the_papers_algorithm(who, momentum, decay, feddyn, parabolas):
    """For whatever steps, learning rate and momentum the clients have in a round."""
    scheduler = StepScheduler(every_n_rounds=2, decay=decay)
    federation = feddyn(steps=6, lr=0.05, momentum=momentum, scheduler=scheduler, **PARTICIPATION[who])
    theta, h, gradients = parabolas.point(federation), np.zeros(16), np.zeros((4, 16))
    counts = set()
    for round in range(7):
        before = federation.state.memory
        result = federation.run_round()
        lr = 0.05 * decay ** (round // 2)
        ends = []
        for receipt in result.receipts:
            k = receipt.client_id

            def regularised(at, k=k):
                return parabolas.gradient(k, at) - gradients[k] + ALPHA * (at - theta)  # noqa: B023

            end, _ = parabolas.descend(regularised, theta, lr=lr, momentum=momentum, steps=receipt.num_steps)
            gradients[k] = gradients[k] - ALPHA * (end - theta)
            ends.append(end)
            counts.add(receipt.num_steps)
        if ends:
            h = h - ALPHA / 4 * sum(end - theta for end in ends)
            theta = np.mean(ends, axis=0) - h / ALPHA
        assert parabolas.point(federation) == pytest.approx(theta, abs=1e-10)
        assert gradients_kept(federation) == pytest.approx(gradients, abs=1e-10)
        assert ALPHA * federation.state.aggregator["h"]["point"].numpy() == pytest.approx(h, abs=1e-10)
        for client_id in before.keys() - set(result.arrived):
            assert federation.state.memory[client_id] is before[client_id], "who is not heard of keeps its lambda"
    assert (len(counts) > 1) is (who == "stragglers")
    assert (federation.state.participation_counts.sum().item() == 28) is (who == "everybody")


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_is_larger_than_zero(alpha):
    with pytest.raises(ValueError, match=r"Expected `correction.alpha` to be larger than 0"):
        FedDynCorrection(alpha=alpha)

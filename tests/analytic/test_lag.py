"""LAG on parabolas: the house's rounds are those of the algorithm, written out on plain arrays.

Client m pays h_m / 2 * ||w - c_m||^2, so that its gradient is h_m (w - c_m) and its smoothness is h_m, exactly. The oracle
minimises the sum of the losses by steps alpha, as the source does; the house minimises their average by steps eta = alpha M.
"""

import numpy as np
import pytest

from fedfacet.methods.lag import LAG, LagSelector, Silence, Smoothness

CURVATURES = np.array([1.0, 1.0, 1.0, 25.0])
ALPHA = 0.5 / CURVATURES.sum()
ETA = ALPHA * len(CURVATURES)
START = np.array([20.0, -3.0])
WINDOW = 10


def lag_of(curvatures, centres, xi, variant, rounds):
    """Yield round by round who sends, and the point after the round."""
    clients, point, steps = range(len(curvatures)), START, []
    sent_at, gradients = {}, {}
    for _ in range(rounds):
        bound = xi / (ALPHA * len(curvatures)) ** 2 * sum(steps[-WINDOW:])
        now = {m: curvatures[m] * (point - centres[m]) for m in clients}
        change = {
            "ps": {m: (curvatures[m] * (sent_at[m] - point)) ** 2 for m in sent_at},
            "wk": {m: (now[m] - gradients[m]) ** 2 for m in gradients},
        }[variant]
        senders = [m for m in clients if m not in change or change[m].sum() > bound]
        for m in senders:
            sent_at[m], gradients[m] = point, now[m]
        after = point - ALPHA * sum(gradients.values())
        steps.append(((after - point) ** 2).sum())
        point = after
        yield senders, point


@pytest.fixture
def lag(quadratic, points, federate):
    """Return a function: samples of each client, xi, variant -> a federation."""

    def make(samples, xi, variant):
        parts = {
            "ps": {"selector": LagSelector(smoothness=Smoothness(), constants=CURVATURES.tolist(), xi=xi, lr=ETA)},
            "wk": {"transforms": [Silence(xi=xi)]},
        }[variant]
        data = points(*((int(h), [sample]) for h, sample in zip(CURVATURES, samples, strict=True)))
        return federate(quadratic(ETA), data, steps=1, aggregator=LAG(), **parts)

    return make


@pytest.mark.parametrize("variant", ["ps", "wk"])
@pytest.mark.parametrize("xi", [0.0, 0.1, 1.0])
def test_it_is_the_algorithm_round_by_round(xi, variant, lag):
    samples = [(3, 9), (12, 0), (7, 1), (8, 5)]
    federation, quiet = lag(samples, xi, variant), 0
    for senders, point in lag_of(CURVATURES, np.array(samples), xi, variant, 40):
        result = federation.run_round()
        assert list(result.arrived) == senders
        assert result.ledger.floats_up == 2 * len(senders), "who is silent sends nothing"
        assert list(result.cohort) == (senders if variant == "ps" else [0, 1, 2, 3])
        assert federation.state.model["point"].numpy() == pytest.approx(point, abs=1e-10)
        quiet += not senders
    assert (quiet > 0) is (xi > 0), "the model moves on in rounds in which nobody sends"


@pytest.mark.parametrize(("xi", "uploads"), [(0.0, [30, 30, 30, 30]), (0.1, [10, 10, 10, 49])])
def test_uploads_until_it_has_converged(xi, uploads, lag):
    """From 6 to 1e-8 on a line through the optimum: gradient descent takes 120 uploads, LAG-PS 79."""
    federation = lag([(0, 0)] * 4, xi, "ps")
    while np.linalg.norm(federation.state.model["point"].numpy()) > 1e-8 * np.linalg.norm(START) / 6:
        federation.run_round()
    assert federation.state.participation_counts.tolist() == uploads

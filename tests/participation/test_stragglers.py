import math

import numpy as np
import pytest

from fedfacet.clients.local_training import LocalTraining
from fedfacet.participation import Stragglers
from fedfacet.selectors.all import AllSelector


def outcomes(count=4000, **options):
    rng = np.random.default_rng(0)
    return np.array([Stragglers(**options).outcome(0, lambda: rng) for _ in range(count)])


def test_stragglers_finish_a_uniform_part():
    parts = outcomes(straggler_probability=1.0, min_fraction=0.2)
    assert parts.min() == pytest.approx(0.2, abs=0.005)
    assert parts.max() == pytest.approx(1.0, abs=0.005)
    np.testing.assert_allclose(np.quantile(parts, [0.25, 0.5, 0.75]), [0.4, 0.6, 0.8], atol=0.03)


def test_clients_straggle_as_often_as_said():
    assert (outcomes(straggler_probability=0.3) == 1.0).mean() == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("options", [{"straggler_probability": 0.0}, {"straggler_probability": 1.0, "min_fraction": 1.0}])
def test_nobody_straggles(options):
    assert (outcomes(100, **options) == 1.0).all()


def test_everybody_is_there():
    assert Stragglers().available(3, np.random.default_rng(0)) == range(3)


@pytest.mark.parametrize(
    "options",
    [
        {"straggler_probability": -0.1},
        {"straggler_probability": 1.1},
        {"straggler_probability": float("nan")},
        {"min_fraction": 0.0},
        {"min_fraction": 1.1},
        {"min_fraction": float("nan")},
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"Expected `{name}` in "):
        Stragglers(**options)


def test_a_straggler_takes_the_first_steps_of_its_plan(tiny_federation):
    """The fraction says how many; which they are is what the same client would have done first."""
    from fedfacet import rng
    from fedfacet.callbacks.base import Callback

    class Keep(Callback):
        needs_updates = True

        def __init__(self):
            self.updates = {}

        def on_updates(self, federation, updates):
            self.updates |= {update.client_id: update for update in updates}

    stragglers, keep = Stragglers(straggler_probability=0.7), Keep()
    local = LocalTraining(unit="steps", amount=10, batch_size=4)
    federation = tiny_federation(participation=stragglers, selector=AllSelector(), local=local, callbacks={"keep": keep})
    assert federation.run_round().arrived == (0, 1, 2, 3)
    for client_id, update in keep.updates.items():
        fraction = stragglers.outcome(client_id, lambda client_id=client_id: rng.stream(0, "outcome", 1, client_id))
        assert update.num_steps == math.ceil(10 * fraction)
        assert update.metrics["num_seen"] == 4 * update.num_steps
    assert len({update.num_steps for update in keep.updates.values()}) > 1

    steps = keep.updates[2].num_steps
    short, alone = Keep(), LocalTraining(unit="steps", amount=steps, batch_size=4)
    tiny_federation(selector=AllSelector(), local=alone, callbacks={"keep": short}).run_round()
    for name, delta in keep.updates[2].delta.items():
        assert delta.equal(short.updates[2].delta[name])

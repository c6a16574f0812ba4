"""LAG with real clients: gradient descent as its limit, whom it asks, and what is refused."""

import logging
from dataclasses import replace
from functools import partial
from math import nan

import pytest
import torch

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.updates import misfit
from fedfacet.methods.lag import LAG, LagSelector, Silence, Smoothness
from fedfacet.participation import Dropouts
from fedfacet.selectors.all import AllSelector
from fedfacet.storage import checkpoint
from fedfacet.types import Facts, SelectionContext

FULL = LocalTraining(unit="steps", amount=1, batch_size=100)


def selector(**options):
    return LagSelector(**{"smoothness": Smoothness(), "lr": 0.1, **options})


def variant(name, xi):
    return {
        "gd": lambda: {"selector": AllSelector(), "aggregator": FedAvg(weighting="samples")},
        "ps": lambda: {"selector": selector(xi=xi), "aggregator": LAG(weighting="samples")},
        "wk": lambda: {"selector": AllSelector(), "aggregator": LAG(weighting="samples"), "transforms": [Silence(xi=xi)]},
    }[name]()


@pytest.fixture
def runs(tiny_federation, tmp_path):
    """Return a function: a variant, xi -> digests of the model round by round, saved and taken up after the third."""

    def make(name, xi=0.0, rounds=6, **others):
        federation = partial(tiny_federation, local=FULL, rounds=rounds, **others)
        run, digests, results = federation(**variant(name, xi)), [], []
        for round in range(rounds):
            if round == 3:
                checkpoint.save(tmp_path / "last.ckpt", run.state, {"seed": 0})
                run = federation(**variant(name, xi))
                run.restore(checkpoint.load(tmp_path / "last.ckpt")[0])
            results.append(run.run_round())
            digests.append(state.digest(run.state.model))
        return digests, results

    return make


def test_whom_the_server_asks_by_hand():
    """The rule of the authors' code, with L = 2 and 1, eta = .5 and its xi of 1.

    Client 2 was never heard. The models of the others lie .2 back, and the last two steps were .1 and .05 long: L^2 .04 is .16
    and .04, against (.01 + .0025) / .25 = .05.
    """
    asks = selector(constants=[2.0, 1.0, 1.0], lr=0.5)
    assert (asks.xi, asks.window, Silence().xi, Silence().window) == (1.0, 10, 0.1, 10)
    server = asks.init(Facts(num_clients=3, model={}, parameters=()))
    server |= {"rounds": torch.tensor([1, 1, 0]), "far": torch.tensor([0.04, 0.04, 0.0]), "moved": [0.01, 0.0025]}
    context = SelectionContext(4, 3, 3, 3, (0, 1, 2), {}, rng.stream(0, "selection", 4), ask=None)
    assert asks.select(server, context) == [0, 2]


@pytest.mark.parametrize("name", ["ps", "wk"])
def test_xi_0_is_gradient_descent_bit_for_bit(name, runs):
    """FedAvg with one step on all samples of everybody, with momentum, which a first step has none of."""
    assert runs(name)[0] == runs("gd")[0]


@pytest.mark.parametrize("name", ["ps", "wk"])
def test_larger_xi_sends_less_and_a_run_goes_on_as_it_was(name, runs, tiny_federation):
    digests, results = runs(name, xi=1.0)
    whole = tiny_federation(local=FULL, rounds=6, **variant(name, 1.0))
    assert digests == [(whole.run_round(), state.digest(whole.state.model))[1] for _ in range(6)]
    sent = [len(result.arrived) for result in results]
    assert sent[0] == 4
    assert sum(sent) < 24
    assert digests != runs("gd")[0]


@pytest.mark.parametrize("name", ["ps", "wk"])
def test_clients_that_are_lost_are_asked_again(name, tiny_federation):
    """Their last gradient is still the one that the server has: the next that comes is taken."""
    federation = tiny_federation(
        local=FULL, rounds=12, seed=1, participation=Dropouts(dropout_probability=0.5), **variant(name, 0.1)
    )
    for _ in range(12):
        federation.run_round()
    assert federation.state.aggregator["deltas"].keys() == {0, 1, 2, 3}
    assert state.all_finite(federation.state.model)


def test_nobody_is_asked_twice_for_a_smoothness_and_nan_takes_part(caplog):
    """Who cannot say how fast its gradient changes is never left with an old one."""
    lag, answers = selector(xi=1.0), {0: 1.0, 1: nan, 2: 1e-6}
    server = lag.init(Facts(4, {}, ()))
    asked = []

    def ask(query, client_ids):
        asked.extend(client_ids)
        return {k: answers[k] for k in client_ids}

    context = SelectionContext(1, 4, 1, 1, (0, 1, 2), {"smoothness": {0: 1.0}}, rng.stream(0, "selection", 1), ask)
    with caplog.at_level(logging.WARNING):
        assert lag.select(server, context) == [0, 1, 2]
    assert asked == [1, 2]
    assert "the smoothness of 1 of 3 clients is not finite, and they take part in every round: clients 1." in caplog.text
    heard = {"rounds": torch.tensor([1, 1, 1, 0]), "far": torch.full((4,), 4.0).double(), "moved": [0.01]}
    known = replace(context, disclosed={"smoothness": answers})
    assert lag.select(heard, known) == [0, 1], "4 > 0.01 / 0.1 ** 2, and 4e-12 is not"


def test_a_silent_update_holds_nothing(tiny_federation):
    federation = tiny_federation(local=FULL, **variant("wk", 1.0))
    task = federation.order(federation.state, 0)
    update = next(federation.engine.run([task]))
    said = replace(update, silent=True)
    fits = partial(misfit, task=task, facts=federation.facts, extras={})
    assert "its delta holds" in fits(said)
    assert fits(replace(said, delta={}, buffers={})) is None
    assert "its extras holds" in fits(replace(said, delta={}, buffers={}, extras={"more": torch.ones(1)}))
    assert "its delta lacks" in fits(replace(said, delta={}, buffers={}, silent=1)), "only True is"
    assert "its delta lacks" in fits(replace(said, delta={}, silent=False))


def test_an_update_that_is_nan_is_not_withheld(tiny_federation):
    """It is sent, and the server refuses it by name."""
    federation, silence = tiny_federation(local=FULL, **variant("wk", 1.0)), Silence(xi=1.0)
    federation.run_round()
    task = federation.order(federation.state, 0)
    same = {name.removeprefix("silence/last|"): last for name, last in task.memory.items() if "last|" in name}
    update = replace(next(federation.engine.run([task])), delta=same, silent=False)
    assert silence.consider(update, task).silent
    assert not silence.consider(replace(update, delta=state.scaled(same, nan)), task).silent


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("method=lag", "local=default"), r"gradients for selector=lag, but a client takes \d+ steps: choose local=full_batch"),
        (("method=lag", "local.batch_size=10"), r"a step takes 10 of a client's \d+ samples: choose local=full_batch"),
        (("method=lag_wk", "local.amount=2"), r"gradients for transforms=silence, but a client takes 2 steps"),
        (("method=lag_wk", "local.sampling=with_replacement"), "draws samples with replacement"),
        (("method=lag", "local.max_grad_norm=1"), "`local.max_grad_norm` clips gradients"),
        (("method=lag", "local.keep_optimizer=true"), "`local.keep_optimizer` keeps momentum"),
        (("method=lag", "privacy=dp_sgd", "loss=cross_entropy"), "`privacy` puts noise on gradients"),
        (("method=lag", "scheduler=cosine"), "the learning rate changes by scheduler=cosine"),
        (("method=lag", "optimizer=adam"), "which selector=lag requires, but there is none: choose optimizer=sgd"),
        (("method=lag", "aggregator=fedavg"), "which selector=lag requires, but there is none: choose aggregator=lag"),
        (("method=lag_wk", "aggregator=fedavg"), "which transforms=silence requires, but there is none: choose aggregator=lag"),
        (("method=lag_wk", "devices=uniform"), "transforms=silence to go with devices=uniform, but it may send nothing"),
        (("method=lag", "compile=true"), "second derivatives for the query `smoothness`, but `compile` is set"),
        (("method=lag", "selector.constants=[1,2]"), r"`selector.constants` of all 24 clients, but got 2"),
        (("method=lag", "aggregator.max_memory_gb=1e-6"), r"to hold the last update of every client, but 24 updates take"),
    ],
)
def test_what_it_cannot_do_with_is_refused_in_one_sentence(overrides, said, job_of, tmp_path):
    with pytest.raises(ConfigError, match=said) as info:
        build(job_of("experiment=digits_gsc", *overrides), tmp_path)
    assert str(info.value).count(". ") == 0


@pytest.mark.parametrize("options", [{"xi": -0.1}, {"xi": nan}, {"window": 0}, {"lr": 0.0}, {"constants": [1.0, -1.0]}])
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        selector(**options)

"""The loss decomposition of real rounds, against models and samples put together by hand."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.aggregators.fedld import FedLD
from fedfacet.callbacks.decomposition import Decomposition
from fedfacet.methods.fedpac import FedPAC, FedPACObjective
from fedfacet.models.resnet8 import ResNet8
from fedfacet.participation import Participation
from fedfacet.personal import PersonalNormLayers
from fedfacet.storage import checkpoint
from fedfacet.types import ClientTask

MATRICES = ([[6, 2], [2, 6]], [[12, 6], [16, 2]], [[7, 7], [1, 1]], [[3, 1], [3, 1]])


@pytest.fixture
def clients(tiny_clients):
    """Four clients of 16, 36, 16 and 8 samples."""

    def make(personal=None, aggregator=None):
        objective = None
        if isinstance(aggregator, FedPAC):  # a method of two halves
            with rng.forked(0, "weights"):
                sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
                objective = FedPACObjective(ResNet8(2, (1, 4, 4), width=2), optimizer=sgd)
        made = tiny_clients(matrices=MATRICES, model=partial(ResNet8, width=2), objective=objective)
        return replace(made, personal=personal.names(made.objective.model) if personal else frozenset())

    return make


@pytest.fixture
def decomposed(clients, tiny_federation):
    def make(*, personal=None, every_n_rounds=1, aggregator=None, **settings):
        made = clients(personal, aggregator)
        callback = Decomposition(data=SimpleNamespace(partition=made.partition), every_n_rounds=every_n_rounds)
        return tiny_federation(clients=made, callbacks={"decomposition": callback}, aggregator=aggregator, **settings)

    return make


def mean_loss(clients, model, positions):
    network = ResNet8(2, (1, 4, 4), width=2)
    network.load_state_dict(model)
    batch = clients.dataset.batch(positions)
    with torch.inference_mode():
        return functional.cross_entropy(network.eval()(batch.x).double(), batch.y).item()


def terms_of(metrics):
    return {name.split("/")[1]: value for name, value in metrics.items() if name.startswith("decomposition/")}


@pytest.mark.parametrize("aggregator", [None, FedLD(), FedPAC()], ids=["fedavg", "fedld", "fedpac"])
@pytest.mark.parametrize("personal", [None, PersonalNormLayers()], ids=["shared", "personal"])
def test_the_terms_are_those_of_the_rounds_own_models(decomposed, clients, aggregator, personal):
    run, twin = decomposed(cohort_size=3, aggregator=aggregator, personal=personal), clients(personal, aggregator)
    for round in (1, 2):
        sent = [run.sent(run.state, k) for k in range(4)]
        memory = dict(run.state.memory)
        result = run.run_round()
        models = []
        for k in result.cohort:
            twin.train(ClientTask(k, round, 0, sent[k], memory.get(k, {})))
            models.append(state.clone(twin.program.tensors))
        owned = [twin.partition.indices[k] for k in result.cohort]
        shares = np.array([len(own) for own in owned]) / sum(map(len, owned))
        losses = np.array([[mean_loss(twin, model, own) for own in owned] for model in models])
        whole = mean_loss(twin, run.state.model, np.concatenate(owned))
        local = shares @ np.diag(losses)
        on_all = shares @ losses @ shares
        assert terms_of(result.metrics) == pytest.approx(
            {
                "local_loss": local,
                "distribution_shift_loss": on_all - local,
                "aggregation_loss": whole - on_all,
                "global_loss": whole,
            },
            rel=1e-5,
            abs=1e-6,
        )
        _, participants = run.callbacks["decomposition"].last
        assert participants == result.arrived


def test_the_signed_terms_add_up_to_the_participants_loss_of_the_new_model(decomposed):
    run = decomposed(cohort_size=4)
    for _ in range(3):
        terms = terms_of(run.run_round().metrics)
        whole = terms.pop("global_loss")
        assert sum(terms.values()) == pytest.approx(whole, rel=1e-10)
        counts = run.engine.evaluate(run.state.model, list(run.engine.clients.partition.indices))
        in_one = sum(count.loss_sum for count in counts) / sum(sum(count.total) for count in counts)
        assert sum(terms.values()) == pytest.approx(in_one, rel=1e-10)


def test_only_clients_whose_update_arrived_take_part(decomposed):
    class Dropping(Participation):
        def outcome(self, client_id, draw):
            return 0.0 if client_id == 1 else 1.0

    run = decomposed(participation=Dropping(), cohort_size=4)
    run.run_round()
    parts, participants = run.callbacks["decomposition"].last
    assert sorted(participants) == [0, 2, 3]
    assert sorted(parts.num_samples.tolist()) == [8, 16, 16]


def test_a_round_without_any_update_has_no_terms(decomposed):
    class Nobody(Participation):
        def outcome(self, client_id, draw):
            return 0.0

    terms = terms_of(decomposed(participation=Nobody()).run_round().metrics)
    assert len(terms) == 4
    assert all(map(math.isnan, terms.values()))


def test_the_losses_are_measured_in_eval_mode_and_change_nothing(decomposed, clients, tiny_federation):
    plain, ours = tiny_federation(clients=clients(), rounds=3), decomposed(rounds=3)
    plain.fit()
    ours.fit()
    assert state.digest(ours.state.model) == state.digest(plain.state.model)


def test_updates_are_kept_only_for_rounds_that_are_decomposed(decomposed):
    run = decomposed(every_n_rounds=2, rounds=3)
    callback, kept, told = run.callbacks["decomposition"], [], []
    note = callback.on_updates
    callback.on_updates = lambda run, updates: (kept.append(run.state.round + 1), note(run, updates))
    callback.on_round_end = lambda federation, result: told.append(terms_of(result.metrics))
    run.fit()
    assert kept == [2, 3]
    assert [all(map(math.isnan, terms.values())) for terms in told] == [True, False, False]
    assert callback._round == (None, ())


def test_a_resumed_run_decomposes_the_same(decomposed, tmp_path):
    whole, part = decomposed(aggregator=FedPAC()), decomposed(aggregator=FedPAC())
    told = [repr(whole.run_round().metrics) for _ in range(3)]
    part.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", part.state, {})
    resumed = decomposed(aggregator=FedPAC())
    resumed.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    assert [repr(resumed.run_round().metrics) for _ in range(2)] == told[1:]


def test_one_client_alone_is_its_local_loss(decomposed):
    """With one participant the global model is its own: no shift, and nothing lost in averaging but a rounding."""
    run = decomposed(cohort_size=1)
    terms = terms_of(run.run_round().metrics)
    assert terms["distribution_shift_loss"] == 0
    assert terms["aggregation_loss"] == pytest.approx(0, abs=1e-6)


def test_rounds_between_measurements_are_checked(clients):
    with pytest.raises(ValueError, match="every_n_rounds"):
        Decomposition(data=SimpleNamespace(partition=clients().partition), every_n_rounds=0)

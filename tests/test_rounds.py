"""A round is a function of the state before it: what measures changes nothing, and a round run twice is the same round."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.build import build
from fedfacet.callbacks.decomposition import Decomposition
from fedfacet.callbacks.evaluate_clients import EvaluateClients, PersonalEvaluate
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.config import compose_job
from fedfacet.data.federated import FederatedData
from fedfacet.participation import Participation
from fedfacet.selectors.base import ClientSelector
from fedfacet.storage import checkpoint
from fedfacet.transforms import UpdateTransform

UNEQUAL = ([[6, 2], [2, 6]], [[12, 6], [16, 2]], [[7, 7], [1, 1]], [[3, 1], [3, 1]])
"""Four clients of 16, 36, 16 and 8 samples."""


class FedAdam(Aggregator):
    """Takes a step of ``torch.optim.Adam`` on the negative mean delta; the state is the optimizer's own."""

    def init(self, facts):
        return {"adam": None}

    def aggregate(self, server, model, updates):
        delta, buffers = self.average(updates)
        weights = {name: nn.Parameter(model[name].clone()) for name in delta}
        optimizer = torch.optim.Adam(weights.values(), lr=0.02)
        if server["adam"] is not None:
            optimizer.load_state_dict(copy.deepcopy(server["adam"]))  # torch would go on with the very same tensors
        for name, weight in weights.items():
            weight.grad = -delta[name]
        optimizer.step()
        moved = {name: weight.detach() for name, weight in weights.items()}
        return {"adam": optimizer.state_dict()}, state.add(model, buffers) | moved


@pytest.fixture
def measuring(tiny_clients):
    """Every callback that measures models and needs more than the global one for it."""
    clients = tiny_clients(matrices=UNEQUAL)
    data = FederatedData(clients.dataset, clients.partition, clients.dataset.train[::3])
    return {
        "decomposition": Decomposition(data=data),
        "personal_evaluate": PersonalEvaluate(data=data),
        "evaluate_clients": EvaluateClients(data=data),
    }


@pytest.mark.parametrize("names", [("decomposition",), ("personal_evaluate",), ("evaluate_clients",), ()], ids=repr)
def test_a_server_optimizer_of_torch_knows_nothing_of_those_who_measure(names, measuring, tiny_federation, plain):
    """No name stands for all of them together."""
    alone, watched = (
        tiny_federation(aggregator=FedAdam(), matrices=UNEQUAL, rounds=4, callbacks=callbacks)
        for callbacks in ({}, {name: measuring[name] for name in names or measuring})
    )
    first = state.digest(alone.state.model)
    alone.fit()
    watched.fit()
    assert state.digest(watched.state.model) == state.digest(alone.state.model) != first
    assert plain(watched.state.aggregator) == plain(alone.state.aggregator)
    assert {entry["step"].item() for entry in alone.state.aggregator["adam"]["state"].values()} == {4}


SMALL = (
    "experiment=digits_gsc",
    "heterogeneity='true'",
    "local.unit=steps",
    "local.amount=2",
    "federation.cohort_size=4",
    "logger=[]",
)
PARTS = {
    "fedavgm": ("aggregator=fedavgm", "selector=uniform", "local.keep_optimizer=true"),
    "fedpac": ("method=fedpac", "model.width=2"),
    "round_robin": ("selector=round_robin", "participation=dropouts"),
    "fedpns": ("selector=fedpns", "personal=norm_layers", "model=resnet8", "model.width=2"),
    "hcsfed": ("selector=hcsfed", "participation=stragglers"),
    "plateau": ("scheduler=plateau", "scheduler.metric=val/loss", "scheduler.patience=0", "scheduler.threshold=0.9"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_round_may_be_run_twice(name, tmp_path, plain):
    config, _ = compose_job(
        "train", [*SMALL, *PARTS[name], "logger=[]", f"callbacks=[{'evaluate' if name == 'plateau' else ''}]"]
    )
    federation = build(config, tmp_path)
    for _ in range(2):
        before = federation.state
        written = plain(before)
        result = replace(federation.run_round(), seconds={})
        after = plain(federation.state)
        assert plain(before) == written, "what was kept is as it was"
        federation.state = before
        assert plain(replace(federation.run_round(), seconds={})) == plain(result)
        assert plain(federation.state) == after
    part = {"plateau": "scheduler", "fedavgm": "aggregator", "fedpac": "aggregator"}.get(name, "selector")
    at_first = build(config, tmp_path).state
    now, then = (one.slot(part) if part == "scheduler" else getattr(one, part) for one in (federation.state, at_first))
    assert plain(now) != plain(then), "it has learnt something"


class Slow(Participation):
    """Client 1 finishes half of its steps, client 2 never answers."""

    def outcome(self, client_id, draw):
        return {1: 0.5, 2: 0.0}.get(client_id, 1.0)


class HighestLoss(ClientSelector):
    """Learns from losses alone: those whose last one was highest go first; who is equal, by a lot drawn when it was learnt."""

    def __init__(self):
        self.heard = []

    def init(self, facts):
        return {"losses": torch.full((facts.num_clients,), torch.inf), "lots": torch.zeros(facts.num_clients)}

    def select(self, server, context):
        context.ask(TrueHeterogeneity(), context.available[1:])
        order = sorted(context.available, key=lambda k: (server["losses"][k].item(), server["lots"][k].item()), reverse=True)
        return order[: context.num_slots]

    def observe(self, server, result, updates, rng):
        self.heard.append((result, updates))
        losses = server["losses"].clone()
        for receipt in result.receipts:
            losses[receipt.client_id] = receipt.loss_sum / receipt.num_seen
        return {"losses": losses, "lots": torch.from_numpy(rng.random(len(losses)))}


class Note(UpdateTransform):
    """Writes down what leaves the clients."""

    def __init__(self):
        self.left = []

    def apply(self, update, rng):
        self.left.append((update.client_id, update.num_samples, update.num_steps, dict(update.metrics)))
        return update


def test_a_receipt_says_what_a_client_did_without_its_update(tiny_federation, plain):
    """All four are asked to train, and all but client 0 are asked a question."""
    selector, note = HighestLoss(), Note()
    federation = tiny_federation(
        selector=selector, participation=Slow(), matrices=UNEQUAL, transforms=[note], cohort_size=4, rounds=2
    )
    result = federation.run_round()
    assert sorted(result.cohort) == [0, 1, 2, 3]
    assert [
        (
            receipt.client_id,
            receipt.num_samples,
            receipt.num_steps,
            {"loss_sum": receipt.loss_sum, "num_seen": receipt.num_seen},
        )
        for receipt in result.receipts
    ] == note.left
    receipts = {receipt.client_id: receipt for receipt in result.receipts}
    assert {k: (receipt.num_samples, receipt.num_steps, receipt.num_seen) for k, receipt in receipts.items()} == {
        0: (16, 2, 16),
        1: (36, 3, 24),  # half of five steps, each on eight samples
        3: (8, 1, 8),
    }
    assert receipts[0].answers == {}
    told = federation.state.disclosures["heterogeneity"]
    assert {k: receipts[k].answers for k in (1, 3)} == {k: {"heterogeneity": told[k]} for k in (1, 3)}
    assert result.arrived == tuple(receipts)
    total = sum(receipt.loss_sum for receipt in result.receipts)
    assert result.metrics["train/loss"] == total / (16 + 24 + 8)
    assert selector.heard == [(result, [])]
    losses = federation.state.selector["losses"]
    assert losses[2] == torch.inf, "client 2 never answered"
    assert losses[3].item() == pytest.approx(receipts[3].loss_sum / 8)
    federation.run_round()
    assert selector.heard[1][0].cohort[0] == 2


def test_what_a_selector_draws_when_it_learns_is_the_same_on_a_resume(tiny_federation, plain, tmp_path):
    def make():
        return tiny_federation(selector=HighestLoss(), cohort_size=2, rounds=5)

    whole, part, resumed = make(), make(), make()
    whole.fit()
    for _ in range(2):
        part.run_round()
    checkpoint.save(tmp_path / "last.ckpt", part.state, {})
    resumed.restore(checkpoint.load(tmp_path / "last.ckpt")[0])
    resumed.fit()
    assert plain(resumed.state) == plain(whole.state)
    assert not torch.equal(part.state.selector["lots"], whole.state.selector["lots"]), "every round has draws of its own"
    assert [result.cohort for result, _ in resumed.selector.heard] == [result.cohort for result, _ in whole.selector.heard][2:]

"""Methods whose server weighs groups of samples, or clients by how they do on groups.

Closed forms are on two groups whose loss is a parabola, r_g = h_g / 2 (w - c_g)^2, dealt to clients in different parts. With
curvatures 1 and 4, optima 0 and 10 and groups of one size, the mean loss is least at w = 8, with losses 32 and 8.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

from fedfacet import rng, state
from fedfacet.aggregators.bounded_group_loss import BoundedGroupLoss
from fedfacet.aggregators.fairfed import FairFed
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedminmax import FedMinMax
from fedfacet.aggregators.global_reweighing import GlobalReweighing
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix
from fedfacet.clients.queries.group_performance import GroupHits, GroupLosses
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.group_weighted import GroupWeightedObjective
from fedfacet.participation import Participation
from fedfacet.selectors.all import AllSelector
from fedfacet.types import GROUP_WEIGHTS, ClientUpdate, Facts

H, C, ETA = torch.tensor([1.0, 4.0]).double(), torch.tensor([0.0, 10.0]).double(), 0.01
COUNTS = ([30.0, 10.0], [10.0, 30.0])
"""How many samples two clients have of each group; all of one class."""


def reached(aggregator, rounds):
    """Run rounds of one full-batch step each; return the server's state and where the model is."""
    model = {"w": torch.tensor([3.0], dtype=torch.float64)}
    server = aggregator.init(Facts(2, model, ("w",)))
    for _ in range(rounds):
        point, updates = model["w"], []
        for client, counts in enumerate(COUNTS):
            weights = aggregator.broadcast(server, model, client).extras.get(GROUP_WEIGHTS, torch.ones(1, 2)).double()[0]
            n = torch.tensor(counts).double()
            gradient = (n / n.sum() * weights * H * (point - C)).sum()
            losses = (n * H / 2 * (point - C) ** 2).tolist()
            updates.append(ClientUpdate(client, {"w": -ETA * gradient[None]}, {}, 40, 1, 1.0, {}, report=[[losses], [counts]]))
        server, model = aggregator.aggregate(server, model, iter(updates))
    return server, float(model["w"])


def test_fedminmax_ends_where_both_groups_lose_alike_wherever_their_samples_are():
    server, point = reached(FedMinMax(group_losses=GroupLosses(), step=1e-3), 2_000)
    assert point == pytest.approx(20 / 3, rel=1e-4)
    # Where the model stands still, mu_1 h_1 (w - c_1) = mu_2 h_2 (c_2 - w): mu = 2/3 and 1/3.
    assert server["mixture"].tolist() == pytest.approx([2 / 3, 1 / 3], rel=1e-3)
    assert server["counts"].sum() == 2_000 * 80


@pytest.mark.parametrize("groups", ["a", "ya"])
@pytest.mark.parametrize(
    ("make", "weights"), [(partial(FedMinMax, step=0.05), "mixture"), (partial(BoundedGroupLoss, step=0.05), "theta")]
)
def test_a_group_of_which_nobody_has_samples_is_neither_served_nor_neglected(make, weights, groups, caplog):
    """The minority is away in three rounds; its weight stays, and so does that of a majority that is alone."""

    def round_of(server, *clients):
        updates = [ClientUpdate(k, {"w": torch.zeros(1)}, {}, 10, 1, 1.0, {}, report=[[s], [c]]) for k, s, c in clients]
        return aggregator.aggregate(server, model, iter(updates))[0]

    aggregator, model = make(group_losses=GroupLosses(), groups=groups), {"w": torch.zeros(1)}
    majority, minority = (0, [10.0, 0.0], [10, 0]), (1, [0.0, 15.0], [0, 10])
    first = round_of(aggregator.init(Facts(2, model, ("w",))), majority, minority)
    server = first
    with caplog.at_level("INFO"):
        for _ in range(3):
            server = round_of(server, majority)
    if weights == "mixture":
        assert first["mixture"].tolist() == pytest.approx([0.4875, 0.5125])
        assert server["mixture"].tolist() == pytest.approx(first["mixture"].tolist(), rel=1e-12)
    else:
        assert server["theta"][1] == first["theta"][1]
    assert caplog.text.count("No client of the round has samples of the groups [1]") == 3


def test_a_bound_on_the_loss_of_groups_is_kept_and_costs_no_more_than_it_must():
    """The first group may lose 25, which it does at sqrt(50); there its multiplier is 2 (10 - w) / w - 1/2."""
    aggregator = BoundedGroupLoss(group_losses=GroupLosses(), zeta=25.0, step=2e-3)
    server, point = reached(aggregator, 1_500)
    assert point == pytest.approx(math.sqrt(50), rel=1e-3)
    sent = aggregator.broadcast(server, {}, 0).extras[GROUP_WEIGHTS][0]
    multiplier = 2 * (10 - math.sqrt(50)) / math.sqrt(50) - 0.5
    assert sent.tolist() == pytest.approx([1 + multiplier / 0.5, 1], rel=1e-2)


def test_a_bound_that_nobody_meets_raises_multipliers_to_their_largest_sum():
    aggregator = BoundedGroupLoss(group_losses=GroupLosses(), zeta=0.0, bound=3.0, step=1.0)
    server, _ = reached(aggregator, 200)
    sent = aggregator.broadcast(server, {}, 0).extras[GROUP_WEIGHTS][0]
    assert ((sent - 1) * 0.5).sum() == pytest.approx(3, rel=1e-6)
    assert sent.isfinite().all()


@pytest.mark.parametrize("make", [partial(FedMinMax, step=0.1), partial(BoundedGroupLoss, step=0.1)])
def test_groups_by_class_and_attribute_have_a_weight_each(make):
    model = {"w": torch.tensor([0.0], dtype=torch.float64)}
    report = [[[8.0, 1.0], [2.0, 0.0]], [[4.0, 1.0], [1.0, 0.0]]]
    update = ClientUpdate(0, {"w": torch.zeros(1, dtype=torch.float64)}, {}, 6, 1, 1.0, {}, report=report)
    sent = {}
    for groups in ("a", "ya"):
        aggregator = make(group_losses=GroupLosses(), groups=groups)
        server, _ = aggregator.aggregate(aggregator.init(Facts(1, model, ("w",))), model, iter([update]))
        sent[groups] = aggregator.broadcast(server, model, 0).extras[GROUP_WEIGHTS]
        assert sent[groups].shape == (2, 2)
        assert sent[groups].dtype == torch.float32
    assert torch.equal(sent["a"][0], sent["a"][1])
    assert sent["ya"][1, 0] == sent["ya"][0, 0] * sent["ya"][1, 0] / sent["ya"][0, 0] != sent["ya"][0, 0]
    assert sent["ya"][1, 1] == 1, "nobody has such samples"


# Global reweighing


@pytest.fixture
def federation(tiny_federation):
    """Return a function: aggregator, objective -> a federation of four clients, two a round."""

    def make(aggregator, kind=GroupWeightedObjective, rounds=3, **settings):
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        objective = kind(model, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
        return tiny_federation(aggregator=aggregator, objective=objective, rounds=rounds, **settings)

    return make


def test_reweighing_asks_everybody_once_and_sends_the_weights_of_all_counts(federation):
    run = federation(GlobalReweighing(interaction_matrix=DisclosedInteractionMatrix()))
    first, second = run.run_round(), run.run_round()
    assert [one.client_id for one in first.disclosed] == [0, 1, 2, 3]
    assert first.ledger.query_floats_up == 16
    assert not second.disclosed
    # Those of TOY_MATRICES.
    pooled = np.array([[22, 16], [16, 10]])
    weights = InteractionMatrix(pooled).independence_weights
    joint = weights * pooled / pooled.sum()
    assert joint == pytest.approx(np.outer(pooled.sum(axis=1), pooled.sum(axis=0)) / pooled.sum() ** 2, rel=1e-12)
    assert torch.equal(run.sent(run.state, 0).extras[GROUP_WEIGHTS], torch.from_numpy(weights).float())
    # They crossed along with the model.
    assert first.ledger.floats_down == 2 * (state.num_floats(run.state.model) + 4)


class SomeAway(Participation):
    """Client 3 is away in the first round."""

    rounds = 0

    def available(self, num_clients, draw):
        self.rounds += 1
        return tuple(range(3 if self.rounds == 1 else 4))


def test_who_was_away_is_asked_when_it_is_there(federation):
    run = federation(GlobalReweighing(interaction_matrix=DisclosedInteractionMatrix()), participation=SomeAway())
    asked = [[one.client_id for one in run.run_round().disclosed] for _ in range(3)]
    assert asked == [[0, 1, 2], [3], []]


def test_where_class_and_attribute_are_independent_reweighing_is_fedavg(federation):
    matrices = ([[6, 2], [2, 6]], [[2, 6], [6, 2]])
    ours = federation(GlobalReweighing(interaction_matrix=DisclosedInteractionMatrix()), matrices=matrices).fit()
    plain = federation(FedAvg(), ClassificationObjective, matrices=matrices).fit()
    assert state.digest(ours.model) == state.digest(plain.model)


@pytest.mark.parametrize(
    "idle",
    [
        FedMinMax(group_losses=GroupLosses(), step=0.0),
        BoundedGroupLoss(group_losses=GroupLosses(), bound=0.0),
        FairFed(group_hits=GroupHits(), beta=0.0),
    ],
    ids=["fedminmax", "bounded_group_loss", "fairfed"],
)
def test_a_strength_of_zero_is_fedavg_bit_for_bit_and_asks_nothing(idle, federation):
    run = federation(idle)
    ledger = run.run_round().ledger
    assert (ledger.query_floats_up, ledger.query_samples) == (0, 0)
    assert state.digest(run.fit().model) == state.digest(federation(FedAvg(), ClassificationObjective).fit().model)


@pytest.mark.parametrize("make", [FedMinMax, BoundedGroupLoss])
def test_weights_change_the_training_from_the_second_round_on(make, federation):
    runs = federation(make(group_losses=GroupLosses(), groups="ya", step=1.0)), federation(FedAvg(), ClassificationObjective)
    digests = []
    for _ in range(2):
        for run in runs:
            run.run_round()
        digests.append([state.digest(run.state.model) for run in runs])
    assert digests[0][0] == digests[0][1]
    assert digests[1][0] != digests[1][1]


# FairFed


def shares(hits_and_counts, **settings):
    """Return the weights after one round in which clients 0, 1, ... have reported."""
    aggregator = FairFed(group_hits=GroupHits(), **settings)
    server = aggregator.init(Facts(4, {}, ()))
    return aggregator.prepare(server, dict(enumerate(hits_and_counts)))


def positives(first, second, of=10):
    """Return a report of a client with hits among ten positive samples of either group, and five of ten others."""
    return [[[5, 5], [first, second]], [[10, 10], [of, of]]]


def test_fairfed_moves_weight_to_those_who_are_about_as_unfair_as_all():
    server = shares([positives(2, 8), positives(4, 8), positives(6, 2)], beta=0.5)
    gaps, overall = np.array([0.6, 0.4, -0.4]), 18 / 30 - 12 / 30
    distances = np.abs(gaps - overall)
    expected = 1 - 0.5 * (distances - distances.mean())
    assert server["weight"].tolist() == pytest.approx([*expected, 0])
    assert server["shift"].sum() == pytest.approx(0)


def test_shifts_add_up_over_rounds_and_who_stays_away_keeps_its_own():
    aggregator = FairFed(group_hits=GroupHits(), beta=0.5)
    reports = {0: positives(2, 8), 1: positives(4, 8), 2: positives(6, 2)}
    once = aggregator.prepare(aggregator.init(Facts(4, {}, ())), reports)
    twice = aggregator.prepare(aggregator.prepare(once, {3: positives(1, 1)}), reports)
    assert twice["shift"].tolist() == pytest.approx([*(2 * once["shift"][:3]).tolist(), 0])


def test_who_lacks_a_group_is_held_to_its_accuracy():
    lacking = [[[5, 5], [9, 0]], [[10, 10], [10, 0]]]
    server = shares([positives(2, 8), lacking], beta=1.0)
    overall = 8 / 10 - 11 / 20
    distances = np.array([abs(0.6 - overall), abs(19 / 30 - 39 / 70)])
    assert server["weight"][:2].tolist() == pytest.approx(1 - (distances - distances.mean()))


def test_weights_are_as_samples_say_and_never_negative():
    server = shares([positives(5, 5), positives(5, 5, of=20)], weighting="samples", beta=0.0)
    assert server["weight"][:2].tolist() == pytest.approx([40 / 50, 60 / 50])
    server = shares([positives(0, 10), positives(10, 0), positives(5, 5)], beta=100.0)
    assert server["weight"][:2].tolist() == [1e-6, 1e-6]


def test_fairfeds_model_is_the_average_by_these_weights(federation):
    aggregator, updates = FairFed(group_hits=GroupHits(), beta=0.5), []
    plain = aggregator.aggregate

    def watched(server, model, sent):
        updates.extend(sent)
        return plain(server, model, iter(updates))

    aggregator.aggregate = watched
    run = federation(aggregator, ClassificationObjective, selector=AllSelector(), cohort_size=4)
    before = run.state
    run.run_round()
    weights = run.state.aggregator["weight"]
    assert weights.mean() == pytest.approx(1)
    for name in run.facts.parameters:
        mean = sum(float(weights[u.client_id]) * u.delta[name] for u in updates) / float(weights.sum())
        torch.testing.assert_close(run.state.model[name], before.model[name] + mean)


# What they ask


def values_of(query, logits, y):
    hit = logits.argmax(dim=1) == y
    return hit if isinstance(query, GroupHits) else torch.nn.functional.cross_entropy(logits, y, reduction="none")


@pytest.mark.parametrize("query", [GroupLosses(), GroupHits()])
def test_group_losses_and_hits_are_those_of_every_cell(query, tiny_federation):
    run = tiny_federation()
    clients = run.engine.clients
    tasks = [run.order(run.state, client) for client in range(4)]
    for indices, answer in zip(clients.partition.indices, run.engine.ask(query, tasks), strict=True):
        batch = clients.dataset.batch(indices)
        with torch.no_grad():
            each = values_of(query, clients.program.module(batch.x), batch.y).double()
        for y, a in np.ndindex(2, 2):
            cell = (batch.y == y) & (batch.a == a)
            assert answer.value[0][y][a] == pytest.approx(float(each[cell].sum()), rel=1e-6)
            assert answer.value[1][y][a] == int(cell.sum())
        assert (answer.floats_up, answer.samples) == (8, len(indices))


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        (FedMinMax, {"groups": "y"}),
        (FedMinMax, {"step": -1}),
        (BoundedGroupLoss, {"groups": "b"}),
        (BoundedGroupLoss, {"bound": -1}),
        (BoundedGroupLoss, {"zeta": float("nan")}),
        (BoundedGroupLoss, {"step": float("inf")}),
    ],
)
def test_values_out_of_range_are_refused(make, bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        make(group_losses=GroupLosses(), **bad)


@pytest.mark.parametrize("bad", [{"beta": -1}, {"beta": float("nan")}, {"positive_class": -1}, {"positive_class": 0.5}])
def test_fairfeds_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        FairFed(group_hits=GroupHits(), **bad)
    assert FairFed(group_hits=GroupHits(), beta=0, positive_class=0).positive_class == 0, "which is a class"

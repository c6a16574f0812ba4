"""Aggregators that judge models on samples of the server's, by counts made up and by those of a small federation.

A model's true positive rates are given as positives that are met, of 20 in each group; its negatives are all right but for
``wrong`` of 40.
"""

import math
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import state
from fedfacet.aggregators.base import MEASURES, compared_rates
from fedfacet.aggregators.fair_accuracy import FairAccuracy
from fedfacet.aggregators.fair_fate import FairFate
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.fedavg_first import FedAvgFirst
from fedfacet.metrics.group_fairness import fairness_of, rates_of
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage import checkpoint
from fedfacet.types import ClientUpdate, Facts

MODEL = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64), "running": torch.tensor([4.0], dtype=torch.float64)}
FACTS = Facts(4, MODEL, ("w",), ("running",))


def counts(met_0, met_1, wrong=0):
    return np.array([[[20 - wrong, wrong], [20, 0]], [[20 - met_0, met_0], [20 - met_1, met_1]]])


def update(client, delta, own, before=(10, 5), num_samples=10):
    tensors = {"w": torch.tensor(delta, dtype=torch.float64)}
    judged = (counts(*before), counts(*own))
    buffers = {"running": torch.tensor([float(client)], dtype=torch.float64)}
    return ClientUpdate(client, tensors, buffers, num_samples, 1, 1.0, {}, judged=judged)


# What is compared


@given(
    counts_YAY=st.integers(2, 4).flatmap(
        lambda Y: st.integers(2, 4).flatmap(
            lambda A: st.lists(st.integers(0, 5), min_size=Y * A * Y, max_size=Y * A * Y).map(
                lambda flat: np.array(flat).reshape(Y, A, Y)
            )
        )
    ),
    measure=st.sampled_from(MEASURES),
)
def test_rates_are_those_by_which_fairness_is_reported(counts_YAY, measure):
    """Groups without samples are NaN in both."""
    names = {"equal_opportunity": ["tpr"], "equalized_odds": ["tpr", "fpr"], "demographic_parity": ["sel"]}
    for positive in range(len(counts_YAY)):
        ours, theirs = compared_rates(counts_YAY, measure, positive), rates_of(counts_YAY, positive)
        np.testing.assert_allclose(ours, [theirs[name] for name in names.get(measure, ["acc"])], rtol=1e-12)
        if not np.isnan(ours).any():
            gap = fairness_of(counts_YAY, positive_class=positive)[measure]
            assert (ours.max(axis=1) - ours.min(axis=1)).max() == pytest.approx(gap, abs=1e-12)


# FAIR-FATE


def test_a_round_of_fair_fate_by_hand():
    """F is 5/10; of the clients 10/10, 6/10 and 4/10, which are 1, 1/3 and 0 of the way, and the server's 1/6."""
    updates = [update(0, [1.0, 0.0], (10, 10)), update(1, [0.0, 3.0], (10, 6)), update(2, [6.0, 6.0], (10, 4))]
    aggregator = FairFate(rounds=10, beta0=0.5, l0=0.2, rho=0.5)
    server, model = aggregator.aggregate(aggregator.init(FACTS), MODEL, iter(updates))
    fair = (1 * np.array([1.0, 0.0]) + 1 / 3 * np.array([0.0, 3.0])) / (4 / 3)
    beta = 0.5 * 0.9 / (0.5 + 0.5 * 0.9)
    np.testing.assert_allclose(server["velocity"]["w"], (1 - beta) * fair)
    # In the first round the correction takes the factor away; 0.2 * 1.5 is 0.3.
    np.testing.assert_allclose(model["w"], np.array([1.0, -2.0]) + 0.3 * fair + 0.7 * np.array([7 / 3, 3.0]))
    assert model["running"] == pytest.approx(5), "buffers are averaged"
    assert server["round"] == 1


def test_the_first_round_of_the_authors_hundred_with_their_defaults():
    """Their class has beta0 = 0.9, l0 = 0.1 and rho = 0.05: beta_1 = 0.891 / 0.991 and lambda_1 = 0.105."""
    server, model = FairFate(rounds=100).aggregate(
        {"velocity": {}, "round": 0}, MODEL, [update(0, [1.0, 0.0], (10, 10)), update(1, [0.0, 2.0], (10, 4))]
    )
    np.testing.assert_allclose(server["velocity"]["w"], [1 - 0.891 / 0.991, 0.0])
    np.testing.assert_allclose(model["w"], [1 + 0.105 * 1 + 0.895 * 0.5, -2 + 0.895 * 1])


def loop(settings, rounds, model, weighting):
    """FAIR-FATE written down once more, with numbers in place of bundles: one parameter after another, round after round."""
    velocity, w = np.zeros(2), model["w"].numpy().copy()
    total, path = settings["rounds"], []
    for t, updates in enumerate(rounds, 1):
        own = []
        for one in updates:
            rates = [one.judged[1][1, a, 1] / one.judged[1][1, a].sum() for a in (0, 1)]
            own.append(min(rates) / max(rates) if max(rates) > 0 else math.nan)
        rates = [updates[0].judged[0][1, a, 1] / 20 for a in (0, 1)]
        f = min(rates) / max(rates) if max(rates) > 0 else math.nan
        p = [one.num_samples if weighting == "samples" else 1 for one in updates]
        mean = sum(weight * one.delta["w"].numpy() for weight, one in zip(p, updates, strict=True)) / sum(p)
        finite = [ratio for ratio in own if ratio == ratio]
        if f != f or not finite:
            w = w + mean
            path.append(w)
            continue
        low, high = min([f, *finite]), max([f, *finite])
        above, below = np.zeros(2), 0.0
        for weight, one, ratio in zip(p, updates, own, strict=True):
            if ratio > f:
                share = weight * (ratio - low) / (high - low)
                above, below = above + share * one.delta["w"].numpy(), below + share
        fair = above / below if below else above
        left = 1 - t / total
        beta = settings["beta0"] * left / (1 - settings["beta0"] + settings["beta0"] * left)
        lam = min(settings["l0"] * (1 + settings["rho"]) ** t, settings["largest"])
        velocity = beta * velocity + (1 - beta) * fair
        w = w + lam * velocity / (1 - beta**t) + (1 - lam) * mean
        path.append(w)
    return path


met = st.integers(0, 20)


@given(
    drawn=st.lists(
        st.tuples(
            st.tuples(met, met),
            st.lists(st.tuples(st.tuples(met, met), st.integers(-5, 5), st.integers(1, 9)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    settings=st.fixed_dictionaries(
        {"rounds": st.integers(6, 9), "beta0": st.sampled_from([0.0, 0.5, 0.9]), "l0": st.sampled_from([0.1, 0.9]),
         "rho": st.sampled_from([0.0, 0.05, 2.0]), "largest": st.sampled_from([1.0, 0.95])}
    ),
    weighting=st.sampled_from(["equal", "samples"]),
)  # fmt: skip
def test_fair_fate_is_the_loop(drawn, settings, weighting):
    """Over rounds, with models that meet nobody, which have no ratio."""
    rounds = [
        [update(k, [step, -2.0 * step], own, before, size) for k, (own, step, size) in enumerate(clients)]
        for before, clients in drawn
    ]
    aggregator = FairFate(**settings, weighting=weighting)
    server, model = aggregator.init(FACTS), MODEL
    for updates, expected in zip(rounds, loop(settings, rounds, MODEL, weighting), strict=True):
        server, model = aggregator.aggregate(server, model, iter(updates))
        np.testing.assert_allclose(model["w"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("own", [(10, 5), (20, 9), (3, 0)], ids=["as fair", "less fair", "as unfair as can be"])
def test_where_all_clients_are_below_the_server_only_the_average_moves_the_model(own):
    aggregator = FairFate(rounds=10, l0=0.25, rho=0.0)
    server, model = aggregator.aggregate(aggregator.init(FACTS), MODEL, [update(k, [2.0, 4.0], own) for k in range(3)])
    np.testing.assert_allclose(model["w"], [1 + 0.75 * 2, -2 + 0.75 * 4])
    # A velocity of earlier rounds fades.
    beta = 0.9 * 0.8 / (0.1 + 0.9 * 0.8)
    server = {"velocity": {"w": torch.tensor([8.0, 0.0], dtype=torch.float64)}, "round": 1}
    server, _ = aggregator.aggregate(server, MODEL, [update(k, [2.0, 4.0], own) for k in range(3)])
    np.testing.assert_allclose(server["velocity"]["w"], [8 * beta, 0])


@pytest.mark.parametrize(
    ("before", "own"), [((0, 0), (10, 10)), ((10, 5), (0, 0))], ids=["the server's has no ratio", "no client's has one"]
)
def test_a_round_that_cannot_be_judged_is_an_average(before, own):
    updates = [update(k, [2.0 * k, 1.0], own, before) for k in range(3)]
    aggregator = FairFate(rounds=10, l0=1.0)
    given = {"velocity": {"w": torch.ones(2, dtype=torch.float64)}, "round": 4}
    server, model = aggregator.aggregate(given, MODEL, updates)
    assert state.digest(model) == state.digest(FedAvg().aggregate({}, MODEL, updates)[1])
    assert server["velocity"] is given["velocity"]
    assert server["round"] == 5


def test_the_share_of_the_fair_step_ends_at_one_and_no_growth_overflows():
    aggregator = FairFate(rounds=3000, l0=1e-3, rho=1e300, beta0=0.0)
    _, model = aggregator.aggregate({"velocity": {}, "round": 2500}, MODEL, [update(0, [1.0, 1.0], (10, 10))])
    np.testing.assert_allclose(model["w"], [2.0, -1.0])


def test_after_the_last_round_there_is_no_momentum():
    aggregator = FairFate(rounds=4, l0=1.0)
    server = {"velocity": {"w": torch.ones(2, dtype=torch.float64)}, "round": 3}
    _, model = aggregator.aggregate(server, MODEL, [update(0, [1.0, 3.0], (10, 10))])
    np.testing.assert_allclose(model["w"], [2.0, 1.0])


# Accuracy over unfairness


WEIGHTED = partial(FairAccuracy, rule="weighted", measure="equal_opportunity", least_gap=0.05, weighting="equal")


def test_weights_of_fair_accuracy_by_hand():
    """Accuracies are (40 + met - wrong) / 80, gaps the difference of what is met, over 20."""
    updates = [
        update(0, [1.0, 0.0], (10, 10)),  # 0.75 / 0.05, since no gap is smaller
        update(1, [0.0, 1.0], (14, 10)),  # 0.8 / 0.2
        update(2, [8.0, 8.0], (20, 10, 4)),  # 0.825 / 0.5
    ]
    ratios = np.array([15, 4, 1.65])
    deltas = np.array([[1.0, 0.0], [0.0, 1.0], [8.0, 8.0]])
    for power in (1.0, 2.0):
        _, model = WEIGHTED(power=power).aggregate({}, MODEL, iter(updates))
        weights = ratios**power / (ratios**power).sum()
        np.testing.assert_allclose(model["w"], MODEL["w"].numpy() + weights @ deltas)
        assert model["running"] == pytest.approx(4 + weights @ [0, 1, 2])


@pytest.mark.parametrize(
    ("rule", "share", "taken"),
    [
        ("fair_best", 1.0, [2]),  # gap 0.05, whatever the share
        ("fair_avg", 0.1, [2]),
        ("fair_avg", 0.5, [2, 3]),  # 0.05 and 0.1
        ("fair_avg", 0.51, [0, 2, 3]),  # and 0.2, of which there are two: 0.9 is more accurate than 0.8
        ("fair_acc_avg", 0.1, [3]),  # 0.9625 / 0.1, 0.4625 / 0.05, 0.9 / 0.2, 0.8 / 0.2
        ("fair_acc_avg", 0.5, [2, 3]),
        ("fair_acc_avg", 1.0, [0, 1, 2, 3]),  # the paper: with a larger alpha it becomes FedAvg
    ],
)
def test_f3s_heuristics_take_the_clients_of_section_3_1_and_average_them_by_samples(rule, share, taken):
    """Of two groups of 20 positives each: (met_0, met_1, negatives wrong)."""
    own = [(18, 14), (10, 14), (6, 7, 16), (18, 20, 1)]
    accuracies, gaps = [0.9, 0.8, 0.4625, 0.9625], [0.2, 0.2, 0.05, 0.1]
    updates = [update(k, [2.0**k, -(3.0**k)], one, num_samples=k + 1) for k, one in enumerate(own)]
    aggregator = FairAccuracy(rule=rule, share=share, measure="equal_opportunity")
    for one, accuracy, gap in zip(updates, accuracies, gaps, strict=True):
        assert aggregator._judged(one) == pytest.approx((accuracy, gap))
    _, model = aggregator.aggregate({}, MODEL, iter(updates))
    sizes = np.array([k + 1 for k in taken])
    mean = sizes @ np.array([[2.0**k, -(3.0**k)] for k in taken]) / sizes.sum()
    np.testing.assert_allclose(model["w"], MODEL["w"].numpy() + mean)


def test_the_papers_alpha_of_ten_percent_is_five_of_its_fifty_clients():
    updates = [update(k, [float(k), 0.0], (20, k % 20)) for k in range(50)]
    assert len(FairAccuracy()._weighed(updates)) == 5


def test_the_best_clients_are_the_same_in_any_order_and_ties_go_to_the_first():
    updates = [update(0, [1.0, 0.0], (10, 4)), update(1, [0.0, 1.0], (12, 6)), update(2, [8.0, 8.0], (12, 6))]
    models = [FairAccuracy().aggregate({}, MODEL, iter(order))[1] for order in permutations(updates)]
    assert {tuple(model["w"].tolist()) for model in models} == {(1.0, -1.0)}


@pytest.mark.parametrize("make", [WEIGHTED, partial(FairAccuracy, share=1.0, weighting="equal")])
def test_clients_whose_groups_have_no_samples_do_not_count_and_if_nobody_does_it_is_an_average(make):
    empty = np.array([[[5, 5], [5, 5]], [[2, 2], [0, 0]]])
    updates = [update(k, [float(k), 1.0], (10, 8)) for k in range(3)]
    updates[2] = replace(updates[2], judged=(empty, empty))
    model = make().aggregate({}, MODEL, iter(updates))[1]
    np.testing.assert_allclose(model["w"], [1.5, -1.0])
    updates = [replace(one, judged=(empty, empty)) for one in updates]
    model = make().aggregate({}, MODEL, iter(updates))[1]
    assert state.digest(model) == state.digest(FedAvg().aggregate({}, MODEL, updates)[1])


def test_a_power_beyond_all_numbers_leaves_the_best_client():
    updates = [update(0, [1.0, 0.0], (10, 9)), update(1, [5.0, 5.0], (10, 4))]
    model = WEIGHTED(power=1e300).aggregate({}, MODEL, iter(updates))[1]
    np.testing.assert_allclose(model["w"], [2.0, -2.0])


# Both, in a federation


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize(
    "make", [partial(FairFate, rounds=3, l0=0.0), partial(WEIGHTED, power=0.0)], ids=["fair_fate", "fair_accuracy"]
)
def test_without_strength_it_is_federated_averaging_bit_for_bit_and_nothing_is_judged(make, weighting, tiny_federation):
    ours, plain = (tiny_federation(aggregator=a(weighting=weighting), rounds=3) for a in (make, FedAvg))
    ours.engine.evaluate = None  # would be called
    assert state.digest(ours.fit().model) == state.digest(plain.fit().model)
    assert "server/samples" not in ours.run_round().metrics


def test_no_one_else_is_told_of_the_servers_samples(tiny_federation):
    run = tiny_federation(aggregator=FedAvgM())
    run.engine.evaluate = None
    assert "server/samples" not in run.run_round().metrics


class Watching(FairFate):
    """Notes what it is given."""

    def aggregate(self, server, model, updates):
        self.seen = list(updates)
        return super().aggregate(server, model, self.seen)


@pytest.mark.parametrize("attributes", [True, False])
def test_the_counts_are_those_of_the_model_that_was_sent_and_of_each_client(attributes, tiny_federation):
    aggregator = Watching(rounds=2)
    run = tiny_federation(aggregator=aggregator, selector=AllSelector())
    samples = run.engine.clients.dataset.test[3:]
    judging = run.find(ServerEvaluation)
    run.put(replace(judging, server_data=judging.server_data._replace(samples=samples, attributes=attributes)))
    before = run.state.model
    assert run.run_round().metrics["server/samples"] == 5 * len(samples)
    batch, module = run.engine.clients.dataset.batch(samples), run.engine.clients.program.module
    for one in aggregator.seen:
        for table, model in zip(one.judged, (before, state.add(before, one.delta | one.buffers)), strict=True):
            module.load_state_dict(model)
            with torch.no_grad():
                predicted = module.eval()(batch.x).argmax(dim=1)
            expected = np.zeros((2, 2, 2), dtype=np.int64)
            for y, a, said in zip(batch.y.tolist(), batch.a.tolist(), predicted.tolist(), strict=True):
                expected[y, a, said] += 1
            assert (table == (expected if attributes else expected.sum(axis=1, keepdims=True))).all()


@pytest.mark.parametrize(
    "make", [partial(FairFate, rounds=5, l0=0.5, measure="accuracy_parity"), partial(FairAccuracy, measure="accuracy_parity")]
)
@pytest.mark.parametrize("cut", [1, 3])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(make, cut, tiny_federation, tmp_path):
    whole, first, second = (tiny_federation(aggregator=make(), rounds=5, cohort_size=3) for _ in range(3))
    whole.fit()
    for _ in range(cut):
        first.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", first.state, {"seed": 0})
    second.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    second.fit()
    assert state.digest(second.state.model) == state.digest(whole.state.model)
    plain = tiny_federation(rounds=5, cohort_size=3)
    assert state.digest(plain.fit().model) != state.digest(whole.state.model), "or this could not fail"


class Pretraining(UniformSelector):
    def mechanisms(self):
        return [FedAvgFirst(2)]


def test_rounds_of_plain_averaging_judge_nothing_but_have_the_same_metrics(tiny_federation):
    run = tiny_federation(aggregator=FairFate(rounds=4), selector=Pretraining(), rounds=4)
    passed = [run.run_round().metrics["server/samples"] for _ in range(4)]
    assert passed == [0, 0, 48, 48]
    assert run.state.aggregator["round"] == 2


def test_a_power_of_another_rule_is_refused():
    with pytest.raises(ValueError, match="`power` is 4, which rule=fair_avg does not use: choose rule=weighted"):
        FairAccuracy(rule="fair_avg", power=4.0)


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        *((partial(FairFate, rounds=3), bad) for bad in (
            {"measure": "calibration"}, {"positive_class": -1}, {"positive_class": True}, {"beta0": 1.0}, {"beta0": -0.1},
            {"beta0": math.nan}, {"l0": 1.1}, {"l0": -1}, {"largest": 0.05}, {"largest": 1.1}, {"largest": math.nan},
            {"rho": -0.1}, {"rho": math.nan}, {"rho": math.inf}, {"rounds": 0},
        )),
        *((FairAccuracy, bad) for bad in (
            {"measure": "tpr"}, {"positive_class": 0.5}, {"rule": "best"}, {"share": 0.0}, {"share": 1.1}, {"least_gap": -0.1},
            {"least_gap": math.nan}, {"least_gap": 2.0}, {"power": -1}, {"power": math.inf},
        )),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(make, bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        make(**bad)

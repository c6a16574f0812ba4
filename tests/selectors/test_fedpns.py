import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedfacet import rng, state
from fedfacet.participation import Dropouts
from fedfacet.records import ClientReceipt, Ledger, RoundResult
from fedfacet.selectors.fedpns import FedPNSSelector, misaligned
from fedfacet.types import ClientUpdate, Facts

TOY_MATRICES = ([[6, 2], [2, 6]], [[2, 6], [6, 2]], [[7, 7], [1, 1]], [[7, 1], [7, 1]])


def update(client_id, vector, *, steps=1):
    """A client's update of a model of two tensors, the first of one entry."""
    vector = torch.as_tensor(vector)
    return ClientUpdate(client_id, {"a": vector[:1], "b": vector[1:].view(1, -1)}, {}, 10, steps, float(steps), {})


class Learning:
    """A selector and what it has learnt."""

    def __init__(self, num_clients, **settings):
        self.selector = FedPNSSelector(**settings)
        self.state = self.selector.init(Facts(num_clients, {}, ()))

    def __getitem__(self, name):
        return self.state[name]

    def observed(self, vectors, *, clients=None, round=1, steps=None):
        """Let it see the updates of a round; return the clients it flagged in it, in no order."""
        clients = tuple(range(len(vectors)) if clients is None else clients)
        steps = steps or [1] * len(clients)
        updates = [update(*pair, steps=number) for *pair, number in zip(clients, vectors, steps, strict=True)]
        receipts = tuple(ClientReceipt(k, 10, number, 1.0, 10) for k, number in zip(clients, steps, strict=True))
        result = RoundResult(round, clients, receipts, {}, Ledger(), {}, len(self["flagged"]))
        before = self["flagged"]
        self.state = self.selector.observe(self.state, result, updates, rng.stream(0, "selector-learns", round))
        return (self["flagged"] - before).nonzero().flatten().tolist()


def observed(vectors, *, clients=None, steps=None, **settings):
    """Return the clients that a fresh selector flags in its first round, in which all take part."""
    return Learning(len(vectors), **settings).observed(vectors, clients=clients, steps=steps)


def alignment(vectors):
    """The sum of every vector's inner product with the mean of all."""
    return sum(vector @ vectors.mean(axis=0) for vector in vectors)


def removed_by_trying(vectors, limit):
    """The definition: take out whoever's absence raises the alignment of the others most, as long as somebody's does."""
    left, removed = list(range(len(vectors))), []
    while len(left) > 1 and len(removed) < limit:
        without = {k: alignment(vectors[[i for i in left if i != k]]) for k in left}
        best = max(left, key=without.get)
        if without[best] <= alignment(vectors[left]):
            break
        left.remove(best)
        removed.append(best)
    return removed


# Who is flagged


@pytest.mark.parametrize("size", [1, 2, 3, 9, 12, 30])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_whom_it_flags_is_found_by_removing_each(size, spread):
    """Against the means of the raw vectors, none of which the Gram matrix knows."""
    for seed in range(4):
        generator = np.random.default_rng(seed)
        vectors = generator.normal(size=7) + spread * generator.normal(size=(size, 7))
        for limit in (size, 2):
            assert misaligned(vectors @ vectors.T, limit) == removed_by_trying(vectors, limit)


def test_it_sees_all_tensors_of_an_update_and_nothing_else():
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(9, 70_001)).astype(np.float32)  # more than one block of columns
    vectors[4] = -vectors.sum(axis=0)
    expected = removed_by_trying(vectors.astype(np.float64), 9)
    assert 4 in expected
    assert observed(vectors) == sorted(expected)


def test_a_client_against_all_others_is_flagged_and_again_once_it_is_gone():
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-2.0, 0.0], [-1.0, 0.0]])
    assert removed_by_trying(vectors, 5) == [3, 4]
    assert observed(vectors) == [3, 4]


def test_the_order_of_the_cohort_does_not_matter():
    vectors = np.random.default_rng(0).normal(size=(8, 5))
    expected = observed(vectors)
    assert expected
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    assert observed(vectors[order], clients=order) == expected


def test_a_tie_goes_to_the_lowest_client_number():
    """Two that cancel each other: one has to go, either would do."""
    assert observed([[0.3, 0.7, -0.1], [-0.3, -0.7, 0.1]], clients=[1, 0]) == [0]


@pytest.mark.parametrize(
    "vectors", [np.zeros((5, 3)), np.full((5, 3), 0.1), np.eye(5), np.ones((1, 3))], ids=["zero", "equal", "orthogonal", "one"]
)
def test_nobody_is_flagged_where_nobody_holds_the_others_back(vectors):
    """Orthogonal updates of one length: each removal leaves the alignment at 1, but for rounding."""
    assert observed(vectors) == []
    assert observed(vectors * np.float64(1 / 3)) == []


def test_a_large_update_is_the_mean_that_the_others_are_held_to():
    """The method's own weakness: one client of great length has all who differ from it flagged, by definition."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-9.0, 0.0]])
    assert sorted(removed_by_trying(vectors, 4)) == [0, 1, 2]
    assert observed(vectors) == [0, 1, 2]


# What becomes of the probabilities


def test_what_the_flagged_lose_is_shared_by_all_others():
    """6 clients, of whom 0 to 3 took part and 3 is flagged: ratio 1 loses 99 %; in the next round, 1 / 2 loses 99 % too."""
    learning = Learning(6)
    against = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]
    assert learning.observed(against) == [3]
    share = 0.99 / 6 / 5
    p = learning["probabilities"].numpy()
    assert p == pytest.approx([1 / 6 + share] * 3 + [0.01 / 6] + [1 / 6 + share] * 2, rel=1e-12)
    assert learning.observed(against, clients=[0, 1, 2, 4]) == [4]
    q = learning["probabilities"].numpy()
    assert q[4] == pytest.approx(0.01 * p[4], rel=1e-12)
    assert q[3] == pytest.approx(p[3] + 0.99 * p[4] / 5, rel=1e-12)


def test_the_less_often_a_client_was_flagged_the_less_it_loses():
    """Flagged in one of ten rounds: (1/10 + 0.7)^2 = 64 % are lost, 36 % kept."""
    learning = Learning(4)
    for round in range(1, 10):
        assert learning.observed(np.ones((4, 2)), round=round) == []
    assert learning.observed([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], round=10) == [3]
    assert learning["arrived"].tolist() == [10] * 4
    assert learning["flagged"].tolist() == [0, 0, 0, 1]
    kept = 1 - (1 / 10 + 0.7) ** 2
    assert learning["probabilities"].tolist() == pytest.approx([0.25 * (1 + (1 - kept) / 3)] * 3 + [0.25 * kept])


def test_exponent_and_offset_are_the_papers_alpha_and_beta():
    learning = Learning(3, penalty_exponent=3, penalty_offset=0.1)
    for round in range(1, 4):
        learning.observed(np.ones((3, 2)), round=round)
    assert learning.observed([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], round=4) == [2]
    assert learning["probabilities"][2].item() == pytest.approx((1 - 0.35**3) / 3)


@settings(max_examples=30)
@given(st.data())
def test_probabilities_stay_probabilities(data):
    num_clients = data.draw(st.integers(1, 12))
    learning = Learning(num_clients, variant=data.draw(st.sampled_from(["paper", "original"])))
    for round in range(1, data.draw(st.integers(2, 12))):
        clients = sorted(data.draw(st.sets(st.integers(0, num_clients - 1))))
        vectors = data.draw(arrays(np.float64, (len(clients), 3), elements=st.sampled_from([-1e6, -1.0, 0.0, 1e-6, 0.5, 1.0])))
        learning.observed(vectors, clients=clients, round=round)
        p = learning["probabilities"].numpy()
        assert p.shape == (num_clients,)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert (p >= 0).all()


def test_the_original_flags_two_of_ten_by_their_gradients_per_step():
    """A third is only held back by the limit; and a client that walks backwards in many small steps does little harm."""
    vectors = np.ones((10, 3))
    vectors[[2, 5, 6]] = [[-3.0, 0, 0], [-2.0, 0, 0], [-1.0, 0, 0]]
    assert observed(vectors) == [2, 5, 6]
    assert observed(vectors, variant="original") == [2, 5]
    assert observed(vectors, variant="original", steps=[1, 1, 100, 1, 1, 1, 1, 1, 1, 1]) == [5, 6]


def test_the_original_may_take_everything():
    learning = Learning(3, variant="original")
    assert learning.observed([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]) == [2]
    assert learning["probabilities"].tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-15)


# Who is drawn


def test_at_first_everybody_is_equally_likely(server):
    drawn = Counter(server(FedPNSSelector(), 5, 1).round(round)[0] for round in range(1, 2001))
    assert [drawn[k] / 2000 for k in range(5)] == pytest.approx([0.2] * 5, abs=0.04)


def test_clients_are_drawn_by_their_probabilities(server):
    run = server(FedPNSSelector(), 4, 2)
    run.observe(1, [0, 1, 2], [update(0, [1.0, 0.0]), update(1, [1.0, 0.0]), update(2, [-1.0, 0.0])])
    p = run.state["probabilities"].numpy()
    cohorts = [run.select(round) for round in range(1, 6001)]
    first, second = Counter(a for a, _ in cohorts), Counter(b for a, b in cohorts if a == 0)
    assert [first[k] / 6000 for k in range(4)] == pytest.approx(p, abs=0.02)
    rest = p[1:] / p[1:].sum()  # once client 0 is drawn
    assert [second[k] / first[0] for k in (1, 2, 3)] == pytest.approx(rest, abs=0.03)
    among = Counter(run.select(round, available=[1, 2])[0] for round in range(1, 4001))
    assert among[2] / 4000 == pytest.approx(p[2] / (p[1] + p[2]), abs=0.01)


def test_without_any_probability_left_the_cohort_is_filled_at_random(server):
    learning = Learning(3, variant="original")
    learning.observed([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    learning.observed([[-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], clients=[0, 1, 2], round=2)
    assert (learning["probabilities"] == 0).any()
    run = server(learning.selector, 3, 2)
    run.state = learning.state
    zero = int(learning["probabilities"].argmin())
    assert all(zero not in run.select(round) for round in range(1, 50)), "never before the others"
    assert run.select(1, available=[zero]) == [zero]
    run.cohort_size = 3
    assert all(sorted(run.select(round)) == [0, 1, 2] for round in range(1, 20))


def test_a_round_without_updates_teaches_nothing(tiny_federation):
    federation = tiny_federation(selector=FedPNSSelector(), participation=Dropouts(dropout_probability=1.0))
    before = federation.state.selector
    federation.fit()
    assert federation.state.selector is before
    assert before["arrived"].tolist() == before["flagged"].tolist() == [0] * 4
    assert before["probabilities"].tolist() == [0.25] * 4


# In federations


def test_it_runs_on_100_clients(tiny_federation):
    """Where the paper has no result."""
    federation = tiny_federation(selector=FedPNSSelector(), matrices=TOY_MATRICES * 25, cohort_size=12, rounds=4)
    federation.fit()
    saved = federation.state.selector
    assert saved["probabilities"].shape == (100,)
    assert saved["probabilities"].sum().item() == pytest.approx(1, abs=1e-12)
    assert saved["arrived"].sum() == 4 * 12
    assert 0 < saved["flagged"].sum() < 4 * 12
    assert torch.equal(saved["arrived"], federation.state.participation_counts)


def test_it_stays_small_with_10000_clients(server):
    """Arrays of the population's length and one of the cohort's size squared; a client once flagged all but vanishes."""
    learning = Learning(10_000)
    cohort = server(learning.selector, 10_000, 100).select(1)
    assert len(set(cohort)) == 100
    generator = np.random.default_rng(0)
    vectors = 1 + generator.normal(size=(100, 50))
    vectors[::10] *= -1
    flagged = learning.observed(vectors, clients=cohort)
    assert flagged == sorted(cohort[position] for position in removed_by_trying(vectors, 100))
    p = learning["probabilities"]
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    assert p[flagged].tolist() == pytest.approx([0.01 / 10_000] * len(flagged))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_resumed_run_is_the_same_bit_for_bit(tiny_federation, cut):
    def federation():
        return tiny_federation(selector=FedPNSSelector(), matrices=TOY_MATRICES * 2, cohort_size=3, rounds=6)

    whole = federation()
    cohorts = [whole.run_round().cohort for _ in range(6)]
    assert whole.state.selector["flagged"].sum() > 0
    first, second = federation(), federation()
    for _ in range(cut):
        first.run_round()
    file = io.BytesIO()
    torch.save(first.state.selector, file)
    file.seek(0)
    second.restore(replace(first.state, selector=torch.load(file, weights_only=True)))
    assert [second.run_round().cohort for _ in range(6 - cut)] == cohorts[cut:]
    assert state.digest(second.state.selector) == state.digest(whole.state.selector)
    assert state.digest(second.state.model) == state.digest(whole.state.model)


@pytest.mark.parametrize(
    ("option", "value"),
    [("variant", "official"), ("penalty_exponent", 0), ("penalty_offset", -0.1), ("penalty_offset", float("nan"))],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` to be .*, but got "):
        FedPNSSelector(**{option: value})

"""Diversity Score against closed forms and its definition written out."""

import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import jensenshannon
from scipy.stats import chisquare, entropy

from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.counts import LabelHistogram
from fedfacet.selectors import diversity_score
from fedfacet.selectors.diversity_score import DiversityScoreSelector, diversity_scores
from fedfacet.types import Broadcast, ClientTask

HISTOGRAMS = [[10, 0, 0, 0], [5, 5, 0, 0], [4, 3, 2, 1], [1, 1, 1, 97], [0, 0, 0, 8]]


def selector(**settings):
    return DiversityScoreSelector(label_histogram=LabelHistogram(), **settings)


def written_out(counts_KC, support_weight, intra_weight, jensen_shannon, scaled):
    """The paper's formulas, term by term."""
    scores, apart = [], []
    shares = [row / row.sum() for row in counts_KC]
    C = counts_KC.shape[1]
    for i, p in enumerate(shares):
        divergences = []
        for j, q in enumerate(shares):
            if i != j:
                middle = (p + q) / 2
                js = max(0.0, (entropy(p, middle) + entropy(q, middle)) / 2)
                divergences.append(math.sqrt(js) if jensen_shannon == "distance" else js)
        apart.append(sum(divergences) / len(divergences))
        own = support_weight * np.count_nonzero(p) / C + (1 - support_weight) * entropy(p) / math.log(C)
        scores.append(intra_weight * own)
    largest = max(apart) if scaled and max(apart) > 0 else 1.0
    return np.array(scores) + (1 - intra_weight) * np.array(apart) / largest


@settings(max_examples=40)
@given(
    hnp.arrays(np.int64, st.tuples(st.integers(2, 6), st.integers(2, 5)), elements=st.integers(0, 20)),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["divergence", "distance"]),
    st.booleans(),
)
def test_scores_are_those_of_the_definition(counts_KC, support_weight, intra_weight, jensen_shannon, scaled):
    counts_KC[:, 0] += 1  # nobody is empty
    settings = (support_weight, intra_weight, jensen_shannon, scaled)
    expected = written_out(counts_KC.astype(float), *settings)
    names = ("support_weight", "intra_weight", "jensen_shannon", "scaled")
    scores = diversity_scores(counts_KC.astype(float), **dict(zip(names, settings, strict=True)))
    # The root of a divergence that is zero but for rounding.
    assert scores == pytest.approx(expected, abs=1e-7 if jensen_shannon == "distance" else 1e-12)


def pair_by_pair(shares_KC):
    """The mean divergences of all pairs of clients."""
    return np.array(
        [np.delete(np.nan_to_num(jensenshannon(p[None], shares_KC, axis=1)) ** 2, k).mean() for k, p in enumerate(shares_KC)]
    )


def federations():
    """Histograms of all kinds: few and many samples, even and lopsided, some clients with nothing, all alike."""
    draws = np.random.default_rng(0)
    yield "iid", draws.multinomial(10, np.full(10, 0.1), 60)
    yield "large", draws.integers(1, 10**6, (60, 10))
    yield "lopsided", np.array([draws.multinomial(200, p) for p in draws.dirichlet(np.full(20, 0.05), 60)])
    yield "one class each", 7 * np.eye(5, dtype=np.int64)[draws.integers(0, 5, 60)]
    yield "rare", np.column_stack([np.full(60, 10**9), draws.integers(0, 3, 60)])
    yield "some have nothing", draws.multinomial(3, [0.5, 0.5], 60) * draws.integers(0, 2, (60, 1))
    yield "one class", draws.integers(1, 9, (60, 1))


@pytest.mark.parametrize("counts", [pytest.param(counts, id=name) for name, counts in federations()])
def test_of_many_clients_scores_and_draws_are_those_of_all_pairs(server, monkeypatch, counts):
    """Draws hang on the last digits of the scores only where a random number falls between them."""
    found = []
    for pairs_up_to in (len(counts), 0):
        monkeypatch.setattr(diversity_score, "PAIRS_UP_TO", pairs_up_to)
        run = server(selector(intra_weight=0.0), len(counts), 9, answers={"label_histogram": counts.tolist()})
        found.append((diversity_scores(counts.astype(float), intra_weight=0.0), [run.round(r) for r in range(1, 101)]))
    (by_pairs, drawn_by_pairs), (by_series, drawn_by_series) = found
    np.testing.assert_allclose(by_series, by_pairs, rtol=0, atol=2e-15)
    assert drawn_by_series == drawn_by_pairs
    holds = counts.sum(axis=1) > 0
    assert (by_pairs[holds] == pair_by_pair(counts[holds] / counts[holds].sum(axis=1, keepdims=True))).all()


def test_the_scores_of_twenty_thousand_clients_take_no_time():
    """All pairs would take 40 s."""
    counts = np.random.default_rng(0).integers(0, 100, (20_000, 10)).astype(float)
    began = time.process_time()
    scores = diversity_scores(counts)
    assert time.process_time() - began < 5
    some = [0, 777, 19_999]
    shares = counts / counts.sum(axis=1, keepdims=True)
    expected = [np.delete(jensenshannon(shares[k][None], shares, axis=1) ** 2, k).mean() for k in some]
    own = diversity_scores(counts[some], intra_weight=1.0)
    assert scores[some] == pytest.approx(own / 2 + np.array(expected) / 2, abs=1e-14)


def test_closed_forms():
    """All classes alike score 1 by themselves, a single one lambda / C; clients with nothing in common are log 2 apart."""
    even, single = [[3.0] * 4, [12.0, 0, 0, 0]]
    own = diversity_scores(np.array([even, single]), intra_weight=1.0, support_weight=0.3)
    assert own == pytest.approx([1.0, 0.3 / 4])
    apart = diversity_scores(np.array([[1.0, 0], [0, 1.0], [0, 7.0]]), intra_weight=0.0)
    assert apart == pytest.approx([math.log(2), math.log(2) / 2, math.log(2) / 2])
    distance = diversity_scores(np.array([[1.0, 0], [0, 1.0]]), intra_weight=0.0, jensen_shannon="distance")
    assert distance == pytest.approx([math.sqrt(math.log(2))] * 2)
    assert diversity_scores(np.array([[1.0, 0], [0, 1.0], [0, 7.0]]), intra_weight=0.0, scaled=True) == pytest.approx(
        [1.0, 0.5, 0.5]
    )


def test_extremes_are_finite():
    for counts in ([[5.0]], [[5.0], [2.0]], [[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]], [[3.0, 1.0]] * 3):
        for kind in ("divergence", "distance"):
            scores = diversity_scores(np.array(counts), jensen_shannon=kind, scaled=True)
            assert np.isfinite(scores).all()
    assert diversity_scores(np.array([[0.0, 0.0], [1.0, 1.0]]))[0] == 0


def test_the_first_is_drawn_in_proportion_to_its_score(server):
    """4,000 rounds; chi square against scores brought to [0, 1] plus the floor."""
    run = server(selector(intra_weight=0.7, floor=0.1), 5, 1, answers={"label_histogram": HISTOGRAMS})
    drawn = Counter(run.round(number)[0] for number in range(1, 4_001))
    scores = written_out(np.array(HISTOGRAMS, dtype=float), 0.5, 0.7, "divergence", False)
    weights = (scores - scores.min()) / np.ptp(scores) + 0.1
    assert chisquare([drawn[k] for k in range(5)], 4_000 * weights / weights.sum()).pvalue > 0.001


def test_equal_clients_are_drawn_uniformly(server):
    run = server(selector(), 4, 1, answers={"label_histogram": [[2, 3]] * 4})
    drawn = Counter(run.round(number)[0] for number in range(1, 2_001))
    assert chisquare([drawn[k] for k in range(4)]).pvalue > 0.001


def test_clients_whose_scores_differ_by_rounding_alone_are_drawn_uniformly(server):
    """Where each class has as many owners as any other, everybody overlaps equally with all others together."""
    classes = np.random.default_rng(0).permuted(np.tile(np.arange(12), (5, 1)), axis=1)
    histograms = np.zeros((20, 12), dtype=np.int64)
    for client_id, owned in enumerate(classes.reshape(20, 3)):  # rows are permutations: three different classes each
        histograms[client_id, owned] = 90
    assert 0 < np.ptp(diversity_scores(histograms.astype(np.float64))) < 1e-14, "what rounding makes of it"
    run = server(selector(), 20, 1, answers={"label_histogram": histograms.tolist()})
    drawn = Counter(run.round(number)[0] for number in range(1, 2_001))
    assert chisquare([drawn[k] for k in range(20)]).pvalue > 0.001


def test_histograms_are_asked_for_once_and_of_latecomers_when_they_come(server):
    run = server(selector(), 5, 2, answers={"label_histogram": HISTOGRAMS})
    run.round(1, available=[0, 2, 3])
    run.round(2, available=[0, 2, 3])
    run.round(3)
    run.round(4, available=[1, 4])
    assert run.asked == [(1, [0, 2, 3]), (3, [1, 4])]


def test_scores_are_found_anew_only_when_somebody_new_is_known(server):
    """And then those of a fresh selector that knows as much: nothing hangs on what was known before."""
    run = server(selector(), 5, 3, answers={"label_histogram": HISTOGRAMS}, seed=3)
    run.round(1, available=[0, 1, 2])
    before = run.selector._known
    run.round(2, available=[0, 1, 2])
    assert run.selector._known is before
    late = run.round(3)
    fresh = server(selector(), 5, 3, answers={"label_histogram": HISTOGRAMS}, seed=3)
    assert fresh.round(3) == late


def test_a_histogram_is_the_clients_counts_per_class_and_costs_as_many_numbers(tiny_clients):
    clients = tiny_clients(matrices=([[4, 1], [1, 4], [3, 3], [0, 1]], [[0, 0], [5, 5], [0, 0], [2, 1]]))
    answers = [answer_query(clients, LabelHistogram(), ClientTask(k, 1, 0, Broadcast({}))) for k in range(2)]
    assert [answer.value for answer in answers] == [[5, 5, 6, 1], [0, 10, 0, 3]]
    assert {(answer.floats_up, answer.samples) for answer in answers} == {(4, 0)}
    assert all(type(count) is int for answer in answers for count in answer.value)
    assert not LabelHistogram.needs_model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"support_weight": -0.1}, r"`support_weight` in \[0, 1\], but got -0\.1"),
        ({"intra_weight": 1.1}, r"`intra_weight` in \[0, 1\], but got 1\.1"),
        ({"intra_weight": math.nan}, "`intra_weight` in"),
        ({"jensen_shannon": "entropy"}, "'divergence' or 'distance', but got 'entropy'"),
        ({"floor": 0.0}, "`floor` to be larger than 0 and finite, but got 0"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        selector(**settings)

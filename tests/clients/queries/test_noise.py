"""What noise on answers hides: sensitivities by trial, spread by test, and draws by name and key."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix, LabelHistogram, NumSamples
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.clients.queries.noise import TRIPLET_REACH, CountNoise, noisy_triplet
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.heterogeneity import InteractionMatrix

MATRIX = [[400, 300], [350, 500]]

counts = st.lists(st.integers(0, 40), min_size=6, max_size=6).map(lambda entries: np.array(entries, float).reshape(3, 2))


@pytest.fixture
def context(tiny_clients):
    """Return a function: seeds -> what a client of 1,550 samples has at hand."""
    clients = tiny_clients(matrices=[MATRIX])

    def make(seed=0, noise_seed=None, round=1):
        return QueryContext(clients.data(0), clients.program.module, torch.optim.SGD, 8, seed, round, 0, noise_seed=noise_seed)

    return make


@given(counts, st.integers(0, 5), st.sampled_from([None, 0.5, 3.0, 30.0]))
def test_a_sample_and_a_client_move_counts_by_what_is_stated(table, cell, max_norm):
    """Before the noise, which is z times the sensitivity that ``counted`` stands for, or more."""
    noise = CountNoise(2.0, max_norm)
    more = table.copy()
    more[cell // 2, cell % 2] += 1
    std = 2.0 * (1.0 if max_norm is None else max_norm)
    by_sample = np.linalg.norm(noise.scaled(more) - noise.scaled(table))
    assert by_sample <= std / noise.counted("sample") * (1 + 1e-9)
    by_client = np.linalg.norm(noise.scaled(table))  # zeros stand in the place
    if max_norm is None:
        assert noise.counted("client") is None
    else:
        assert by_client <= std / noise.counted("client") * (1 + 1e-9)


@given(counts, counts)
def test_no_two_triplets_are_further_apart_than_stated(one, other):
    triplets = [np.array(InteractionMatrix(table).triplet) for table in (one, other)]
    assert np.linalg.norm(triplets[0] - triplets[1]) <= TRIPLET_REACH
    assert np.linalg.norm(triplets[0]) <= TRIPLET_REACH


def test_noise_is_gaussian_of_the_stated_size(context):
    """Where counts are far from 0; for a client as large as its table's largest norm."""
    exact = np.array(MATRIX).sum(axis=1)
    samples = [np.array(LabelHistogram(noise_multiplier=3.0).answer(context(seed)).value) - exact for seed in range(300)]
    assert kstest(np.concatenate(samples), norm(scale=3.0).cdf).pvalue > 1e-3
    scaled = np.array(MATRIX) * (200 / np.linalg.norm(MATRIX))
    query = DisclosedInteractionMatrix(noise_multiplier=0.05, max_norm=200.0)
    hidden = [(np.array(query.answer(context(seed)).value) - scaled).ravel() for seed in range(300)]
    assert kstest(np.concatenate(hidden), norm(scale=10.0).cdf).pvalue > 1e-3
    number = [NumSamples(noise_multiplier=0.05, max_norm=200.0).answer(context(seed)).value for seed in range(300)]
    assert np.std(number) == pytest.approx(10, rel=0.15)
    assert np.mean(number) == pytest.approx(200, abs=4)


def test_noise_follows_from_key_question_and_round(context):
    query = LabelHistogram(noise_multiplier=1.0)
    plain, again, keyed, later = (query.answer(own).value for own in (context(), context(), context(0, 99), context(0, 99, 2)))
    assert plain == again
    assert len({tuple(value) for value in (plain, keyed, later)}) == 3
    # Two questions of a round must not have one noise, which would cancel out.
    table = np.array(DisclosedInteractionMatrix(noise_multiplier=1.0).answer(context()).value) - MATRIX
    assert abs((np.array(plain) - np.array(MATRIX).sum(axis=1))[0] - table.ravel()[0]) > 1e-6


def test_triplets_stay_in_their_range_and_are_their_own_with_little_noise(context):
    exact = TrueHeterogeneity().answer(context()).value
    assert TrueHeterogeneity(noise_multiplier=1e-6).answer(context()).value == pytest.approx(exact, abs=1e-6)
    for seed in range(20):
        for value in (
            TrueHeterogeneity(noise_multiplier=300.0, max_norm=1.0).answer(context(seed)).value,
            noisy_triplet((0.2, 0.5, 0.9), 4.0, context(seed), "heterogeneity"),
        ):
            assert all(0 <= measure <= 1 for measure in value)
    moved = np.array([noisy_triplet((0.5, 0.5, 0.5), 0.02, context(seed), "heterogeneity") for seed in range(200)]) - 0.5
    assert kstest(moved.ravel(), norm(scale=0.02 * math.sqrt(3)).cdf).pvalue > 1e-3


def test_what_has_no_bound_is_counted_by_nothing():
    assert LocalLoss().counted("client") is LocalLoss().counted("sample") is None
    assert LabelHistogram().counted("sample") is LabelHistogram(noise_multiplier=1.0).counted("client") is None
    assert NumSamples().counted("sample") == math.inf, "sizes are public where samples are hidden"
    assert NumSamples().counted("client") is TrueHeterogeneity(epsilon=1.0).counted("sample") is None
    assert EstimatedHeterogeneity(noise_multiplier=2.0).counted("sample") == 2.0
    assert CountNoise(2.0, 5.0).counted("client") == 2.0


@pytest.mark.parametrize("changed", [{"noise_multiplier": 0.0}, {"noise_multiplier": math.inf}, {"max_norm": 1.0}])
def test_values_out_of_range_are_refused(changed):
    with pytest.raises(ValueError, match=next(iter(changed))):
        LabelHistogram(**changed)


def test_one_kind_of_noise_is_enough():
    with pytest.raises(ValueError, match="got both"):
        TrueHeterogeneity(epsilon=1.0, noise_multiplier=1.0)

from collections import Counter
from itertools import combinations

from scipy.stats import chisquare

from fedfacet.selectors.uniform import UniformSelector


def test_every_set_of_clients_is_equally_likely(server):
    run = server(UniformSelector(), 5, 2)
    drawn = Counter(frozenset(run.round(round)) for round in range(1, 1501))
    assert set(drawn) == set(map(frozenset, combinations(range(5), 2)))
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_every_order_is_equally_likely(server):
    run = server(UniformSelector(), 3, 3)
    drawn = Counter(run.round(round) for round in range(1, 1201))
    assert len(drawn) == 6
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_only_the_available_are_drawn(server):
    run = server(UniformSelector(), 9, 4)
    assert all(set(run.round(round, available=[2, 3, 5, 7, 8])) <= {2, 3, 5, 7, 8} for round in range(1, 50))
    assert sorted(run.round(1, available=[4, 6])) == [4, 6]


def test_rounds_and_seeds_draw_anew(server):
    assert len({server(UniformSelector(), 24, 9, seed=seed).round(round) for seed in range(3) for round in range(1, 4)}) == 9


def test_nobody_is_asked_anything(server):
    run = server(UniformSelector(), 5, 2)
    run.round(1)
    assert run.asked == []

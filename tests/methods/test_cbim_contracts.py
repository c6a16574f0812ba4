import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.methods.cbim import budgeted, menu_of

SECONDS = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=40)


def settings(lowest=0.5, highest=1.0, unit_cost=1.0):
    return {"lowest": lowest, "highest": highest, "unit_cost": unit_cost}


@given(SECONDS, st.integers(1, 7), st.floats(0.01, 5), st.floats(0.01, 5), st.floats(0.01, 100))
def test_no_type_loses_and_none_is_better_off_with_anothers_item(seconds, items, lowest, spread, unit_cost):
    """Individual rationality and incentive compatibility, over the whole menu, of every type between the lowest and highest."""
    menu = menu_of(seconds, items, **settings(lowest, lowest + spread, unit_cost))
    scale = max(1.0, *menu.rewards) * (lowest + spread)
    for position, type_ in enumerate(np.linspace(lowest, lowest + spread, 8 * items, endpoint=False)):
        utilities = menu.utilities(type_)
        assert utilities[position // 8] >= -1e-9 * scale
        assert utilities[position // 8] >= utilities.max() - 1e-9 * scale
    assert menu.utilities(lowest)[0] == pytest.approx(0, abs=1e-9 * scale), "the least type gains nothing, so it costs least"
    assert (np.diff(menu.rewards) >= 0).all()
    assert menu.rewards[0] > 0


@given(SECONDS, st.integers(1, 5), st.floats(0.5, 1), st.floats(0.01, 1e4))
def test_a_client_takes_the_best_that_its_device_can_do(seconds, items, type_, own):
    menu = menu_of(seconds, items, **settings())
    able = [m for m in range(items) if own <= menu.seconds[m]]
    item = menu.choice(type_, own)
    if own > max(seconds):
        assert item is None
    else:
        assert item in able
        assert menu.utilities(type_)[item] == max(menu.utilities(type_)[m] for m in able)
        assert menu.utilities(type_)[item] >= -1e-12


def test_items_ask_for_quantiles_of_the_clients_seconds():
    menu = menu_of([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 4, **settings())
    assert menu.seconds == (8.0, 6.0, 4.0, 2.0)
    assert menu.speeds == (0.25, 1 / 3, 0.5, 1.0)
    types, costs = [0.5, 0.625, 0.75, 0.875], np.square(menu.speeds)
    assert menu.rewards[0] == pytest.approx(costs[0] / 0.5)
    for m in (1, 2, 3):
        assert types[m] * menu.rewards[m] - costs[m] == pytest.approx(types[m] * menu.rewards[m - 1] - costs[m - 1])


def test_clients_that_take_no_time_at_all():
    menu = menu_of([0.0, 0.0], 3, **settings())
    assert menu.rewards == (2.0, 2.0, 2.0)
    assert menu.choice(0.5, 0.0) == 2


@given(st.lists(st.floats(0.1, 9), max_size=12), st.floats(0, 30))
def test_a_budget_is_kept_and_nobody_is_left_out_who_could_be_paid(rewards, budget):
    rewards = sorted(rewards, reverse=True)
    taken = budgeted(rewards, budget)
    spent = sum(rewards[k] for k in taken)
    assert spent <= budget + 1e-9
    assert all(spent + rewards[k] > budget - 1e-9 for k in range(len(rewards)) if k not in taken)

"""What every termination keeps to."""

from copy import deepcopy
from pathlib import Path

import pytest

from fedfacet import config
from fedfacet.records import ClientReceipt, Ledger, RoundResult

CONF = Path(__file__).parents[2] / "conf"
ROUNDS = 12


def result(round, *, acc=0.5, arrived=2, clock=0.0, dead=0, spent=0.0):
    """A round of five clients."""
    receipts = tuple(ClientReceipt(client_id, 10, 3, 1.0, 10.0) for client_id in range(arrived))
    metrics = {
        "train/loss": 1.0,
        "val/acc": acc,
        "test/acc": 0.1,
        "sim/clock": clock,
        "sim/dead": dead,
        "selector/spent": spent,
    }
    return RoundResult(round, tuple(range(3)), receipts, metrics, Ledger(), {}, 5)


LIVELY = [
    result(round, acc=0.08 * round, arrived=round % 3, clock=900.0 * round, dead=round // 3, spent=20.0)
    for round in range(1, ROUNDS)
]


@pytest.fixture
def made(node_of):
    """Return a function: option, other values of its keys -> the termination, made as a run does, without facts."""

    def make(option, **changed):
        node = node_of("termination", option)
        if "_target_" not in node or changed.keys() - node.keys():
            pytest.skip("it has no such setting")
        node.update(changed)
        return config.make(node)

    return make


def test_it_keeps_nothing_and_its_state_goes_in_and_comes_out(termination_option, made, same, through_a_file):
    one, other = made(termination_option), made(termination_option)
    server = one.init()
    for seen in LIVELY:
        before = deepcopy(server)
        after, reason = one.observe(server, seen)
        assert same(server, before)
        assert (reason is None) or (isinstance(reason, str) and reason)
        assert other.observe(through_a_file(before), seen)[1] == reason
        assert same(one.observe(server, seen)[0], after)
        assert after.keys() == one.init().keys()
        server = through_a_file(after)


BAD = [
    *(
        (key, value)
        for key in ("target", "rounds", "hours", "dead_share", "payments", "patience")
        for value in (0, -1, float("nan"))
    ),
    *(("metric", name) for name in ("test/acc", "personal_test/acc", "train/loss")),
]


def test_what_is_out_of_range_is_refused(termination_option, node_of, made):
    settings = node_of("termination", termination_option)
    for key, value in BAD:
        if key in settings:
            with pytest.raises(ValueError, match="Expected `termination"):
                assert not made(termination_option, **{key: value}), f"{key}={value} was taken"


def test_each_of_them_is_a_setting_of_some_option(node_of):
    """Or a value above would be tried by nobody."""
    options = (file.stem for file in (CONF / "termination").glob("*.yaml"))
    settings = [node_of("termination", option) for option in options]
    assert [key for key, _ in BAD if not any(key in one for one in settings)] == []

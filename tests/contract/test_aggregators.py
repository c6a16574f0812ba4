"""What every aggregator of conf/aggregator keeps to."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.storage.fitting import misfit

FLOAT_BUFFERS = ("norm.running_mean", "norm.running_var")

NO_REPETITION = {
    "fedld": "its directions are those of the updates as they are, whatever they weigh",
    "fedgh": "an update is harmonised with each other update once, whatever that weighs",
    "feddyn": "it adds up how far all clients have moved, so that more of them count for more",
    "lag": "it keeps one update of each client, however often that comes",
    "krum": "an update has as many neighbours as there are others, and its weight does not decide whether it is kept",
}
SUMS = {"feddyn"}
"""Aggregators for which the same update from five clients is more than from one."""
"""Aggregators for which a client of three times the samples is not three clients, and why."""

NO_MEAN_OF_BUFFERS = {
    "coordinate_median": "it takes the median of buffers, as of parameters",
    "geometric_median": "buffers are a part of the update",
    "krum": "buffers are those of the update that is kept",
    "trimmed_mean": "it takes the trimmed mean of buffers, as of parameters",
}
"""Aggregators that do not average buffers, or a bad client's would get into the model; their own tests have the rules."""

EVERY_CLIENT = {"fair_accuracy": {"share": 1.0}}
"""What has an aggregator count all clients and not only the best, where it is asked how it weighs them."""

MEAN_OF_HEADS = {"fedpac": "its global head is a mean of heads rather than a head plus a mean of updates"}
"""Aggregators whose head may move by rounding where nobody's moved, and why."""


REPORTS = {
    "local_loss": lambda update: 0.5 + 0.1 * update.client_id,
    "group_losses": lambda update: [[[3.0, 1.0], [0.5 * update.client_id, 2.0]], [[4.0, 1.0], [2.0, 3.0]]],
    # As many samples as it has, and equal rates everywhere.
    "group_hits": lambda update: [[[0.2 * update.num_samples] * 2] * 2, [[0.25 * update.num_samples] * 2] * 2],
    "group_scores": lambda update: [[[1.0, 2.0], [0.1 * update.client_id, 2.0]], [[4.0, 5.0], [2.0, 3.0]]],
    "interaction_matrix": lambda update: [[3, 1], [update.client_id, 2]],
}
"""What clients answer to the questions of aggregators, by the question's name."""


def judged(update):
    """What the model that was sent and a client's say of samples of the server's; later clients' are fairer.

    The groups' true positive rates have another ratio, but one difference, and the accuracy is the same.
    """
    return tuple(
        np.array([[[15 - more, 5 + more]] * 2, [[10 - more, 10 + more], [12 - more, 8 + more]]])
        for more in (0, update.client_id)
    )


class Run:
    """A server with one aggregator: its state goes into every round and comes out of it."""

    def __init__(self, aggregator, facts):
        self.aggregator, self.facts = aggregator, facts
        self.server = aggregator.init(facts)
        self.model = facts.model

    def round(self, server, model, updates):
        """Return state and model after a round whose clients have answered what the aggregator asks."""
        query = self.aggregator.report() if self.aggregator.report is not None else None
        report = REPORTS[query.name] if query is not None else lambda update: None
        if self.aggregator.prepare is not None and isinstance(updates, list):
            server = self.aggregator.prepare(server, {update.client_id: report(update) for update in updates})
        return self.aggregator.aggregate(
            server, model, (replace(update, report=report(update), judged=judged(update)) for update in updates)
        )

    def aggregate(self, updates):
        """Run a round, and return the next model."""
        self.server, self.model = self.round(self.server, self.model, updates)
        fault = misfit("aggregator", self.server, self.aggregator.init(self.facts), self.facts.model)
        assert fault is None, "a resume holds the state to the one that `init` returns"
        return self.model


@pytest.fixture
def run(aggregator_option, make_part, facts_of_model):
    """Return a function: other values of the option's keys -> a server before its first round."""
    return lambda **changed: Run(make_part("aggregator", aggregator_option, **changed), facts_of_model)


@pytest.fixture
def aggregator(aggregator_option, make_part):
    return make_part("aggregator", aggregator_option)


@pytest.fixture
def model(facts_of_model):
    return facts_of_model.model


@pytest.fixture
def updates(make_update, aggregator, facts_of_model):
    """Return a function: round -> the updates of that round's cohort, with the extras that the aggregator reads."""
    extras = aggregator.extras(facts_of_model)
    return lambda round=1, cohort=(4, 0, 2): [make_update(client_id, seed=round, extras=extras) for client_id in cohort]


def zero(update):
    return replace(update, delta=state.scaled(update.delta, 0.0), buffers=state.scaled(update.buffers, 0.0))


def assert_close(left, right):
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-5, atol=1e-6, msg=name)


def test_names_shapes_and_dtypes_stay(run, model, updates):
    ours = run()
    for round in range(1, 4):
        after = ours.aggregate(updates(round))
        assert list(after) == list(model)
        assert [(t.shape, t.dtype) for t in after.values()] == [(t.shape, t.dtype) for t in model.values()]
        assert state.all_finite(after)


def test_updates_of_zero_change_nothing(run, model, updates, aggregator_option):
    """From a fresh start; server momentum may well go on moving later."""
    after = run().aggregate([zero(update) for update in updates()])
    rounded = {name for name in model if name.startswith("head.") and aggregator_option in MEAN_OF_HEADS}
    exact = [{name: t for name, t in bundle.items() if name not in rounded} for bundle in (after, model)]
    assert state.digest(exact[0]) == state.digest(exact[1])
    assert_close(after, model)


def test_something_changes_otherwise(run, model, updates, facts_of_model):
    after = run().aggregate(updates())
    assert all(not torch.equal(after[name], model[name]) for name in facts_of_model.parameters)


def test_equal_updates_count_as_one_however_many_sent_them(aggregator_option, run, updates):
    if aggregator_option in SUMS:
        pytest.skip(NO_REPETITION[aggregator_option])
    (update,) = updates(cohort=(3,))
    results = [run().aggregate([update] * count) for count in (1, 2, 5)]
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


def test_the_order_of_clients_does_not_matter_but_for_rounding(run, updates):
    results = []
    for order in permutations(range(3)):
        ours = run()
        ours.aggregate([updates(1)[position] for position in order])
        results.append(ours.aggregate([updates(2)[position] for position in order]))
    for result in results[1:]:
        assert_close(result, results[0])


def test_a_round_run_twice_from_one_state_is_the_same_bit_for_bit(run, updates, same):
    """Also by another aggregator of the same settings, and with other rounds in between: it keeps nothing to itself."""
    ours, other = run(), run()
    for round in range(1, 4):
        sent, server, model = updates(round), ours.server, ours.model
        first = ours.round(server, model, sent)
        ours.round(*first, updates(round + 10))
        assert same(list(ours.round(server, model, sent)), list(first))
        assert same(list(other.round(server, model, sent)), list(first))
        assert same(ours.aggregator.init(ours.facts), other.server)
        ours.server, ours.model = first


def test_neither_state_nor_model_nor_updates_are_written_to(run, updates, same):
    ours = run()
    for round in range(1, 4):
        sent = updates(round)
        given = [ours.server, ours.model, ours.facts.model, *({"d": u.delta, "b": u.buffers, "e": u.extras} for u in sent)]
        before = deepcopy(given)
        ours.aggregate(sent)
        ours.aggregator.extras(ours.facts)
        assert same(given, before)


def test_a_state_that_went_through_a_file_goes_on_alike(run, updates, same, through_a_file):
    whole = run()
    states = [(whole.server, whole.model)]
    for round in range(1, 5):
        whole.aggregate(updates(round))
        states.append((whole.server, whole.model))
    for cut in range(4):
        second = run()
        second.server, second.model = through_a_file(states[cut])
        assert same([second.server, second.model], list(states[cut]))
        for round in range(cut + 1, 5):
            second.aggregate(updates(round))
        assert same([second.server, second.model], [whole.server, whole.model])


def test_a_round_that_is_given_up_leaves_no_trace(run, updates, same):
    class Stop(Exception):
        pass

    def interrupted(arrived):
        yield from updates(2)[:arrived]
        raise Stop

    stopped, whole = run(), run()
    stopped.aggregate(updates(1))
    whole.aggregate(updates(1))
    before = deepcopy([stopped.server, stopped.model])
    for arrived in range(3):
        with pytest.raises(Stop):
            stopped.aggregate(interrupted(arrived))
        assert same([stopped.server, stopped.model], before)
    assert state.digest(stopped.aggregate(updates(2))) == state.digest(whole.aggregate(updates(2)))


def test_buffers_are_averaged_and_never_an_argument_of_a_server_optimizer(aggregator_option, run, model, updates):
    if aggregator_option in NO_MEAN_OF_BUFFERS:
        pytest.skip(NO_MEAN_OF_BUFFERS[aggregator_option])
    ours = run(buffers="average", weighting="equal", **EVERY_CLIENT.get(aggregator_option, {}))
    for round in range(1, 6):
        sent = updates(round)
        after = ours.aggregate(sent)
        for name in FLOAT_BUFFERS:
            torch.testing.assert_close(after[name], model[name] + sum(u.buffers[name] for u in sent) / len(sent))
        assert after["norm.num_batches_tracked"] == model["norm.num_batches_tracked"] == 7
        model = after
    assert (model["norm.running_var"] > 0).all()


def test_buffers_are_kept_where_that_is_chosen(run, model, updates):
    ours = run(buffers="keep")
    ours.aggregate(updates(1))
    after = ours.aggregate(updates(2))
    for name in (*FLOAT_BUFFERS, "norm.num_batches_tracked"):
        assert torch.equal(after[name], model[name])
    assert not torch.equal(after["body.weight"], model["body.weight"])


def test_weighting_by_samples_is_repetition(aggregator_option, run, updates):
    """A client of three times the samples counts like three clients."""
    if aggregator_option in NO_REPETITION:
        pytest.skip(NO_REPETITION[aggregator_option])
    run = partial(run, **EVERY_CLIENT.get(aggregator_option, {}))
    first, second = updates(cohort=(0, 1))
    sized = [replace(first, num_samples=30), replace(second, num_samples=10)]
    weighted = run(weighting="samples").aggregate(sized)
    assert_close(weighted, run(weighting="equal").aggregate([first, first, first, second]))
    assert not torch.allclose(run(weighting="equal").aggregate(sized)["body.weight"], weighted["body.weight"])


def test_weighting_by_samples_makes_a_difference_where_it_is_asked_for(aggregator_option, run, updates):
    run = partial(run, **EVERY_CLIENT.get(aggregator_option, {}))
    first, second = updates(cohort=(0, 1))
    results = {}
    for weighting in ("samples", "equal"):
        for sizes in ((30, 10), (10, 10)):
            sent = [replace(update, num_samples=size) for update, size in zip((first, second), sizes, strict=True)]
            results[weighting, sizes] = run(weighting=weighting).aggregate(sent)
    assert_close(results["equal", (30, 10)], results["equal", (10, 10)])
    assert_close(results["samples", (10, 10)], results["equal", (10, 10)])
    assert not torch.allclose(results["samples", (30, 10)]["body.weight"], results["equal", (30, 10)]["body.weight"])


def test_what_nobody_sent_stays(aggregator, facts_of_model, model, updates):
    """Frozen parameters are in no update."""
    trained = tuple(name for name in facts_of_model.parameters if name != "body.weight")
    sent = [replace(u, delta={name: t for name, t in u.delta.items() if name != "body.weight"}) for u in updates()]
    after = Run(aggregator, replace(facts_of_model, parameters=trained)).aggregate(sent)
    assert torch.equal(after["body.weight"], model["body.weight"])
    assert not torch.equal(after["head.weight"], model["head.weight"])


def test_a_client_that_never_took_part_is_sent_the_model_itself(run, updates, same):
    """Shared by reference for those who are sent the same, and not written to."""
    ours = run()
    for round in range(1, 4):
        before = deepcopy([ours.server, ours.model])
        if ours.aggregator.broadcast is not None:
            sent = ours.aggregator.broadcast(ours.server, ours.model, 9)
            assert all(sent.model[name] is ours.model[name] for name in ours.model)
            for client_id in range(5):
                sent = ours.aggregator.broadcast(ours.server, ours.model, client_id)
                assert list(sent.model) == list(ours.model)
                assert all(isinstance(tensor, torch.Tensor) for tensor in sent.extras.values())
        assert same([ours.server, ours.model], before)
        ours.aggregate(updates(round))


def test_what_it_reads_of_extras_is_among_what_it_needs(aggregator, facts_of_model):
    """So that ``build`` refuses an objective that does not send it, before a client is asked for it."""
    assert isinstance(aggregator, Aggregator)
    assert isinstance(aggregator.provides, frozenset)
    assert isinstance(aggregator.requires, frozenset)
    for extra in aggregator.extras(facts_of_model):
        assert any(extra == name or extra.startswith(f"{name}/") for name in aggregator.requires), extra


def test_unknown_policies_are_refused(aggregator_option, make_part):
    for option in ("weighting", "buffers"):
        with pytest.raises(ValueError, match=f"Expected `{option}` to be '.*' or '.*', but got 'typo'"):
            make_part("aggregator", aggregator_option, **{option: "typo"})


NO_MEAN_OF_EQUALS = {
    "agnostic": "it averages what is scaled by a client's share of the mixture",
    "feddyn": "it adds up how far all clients have moved, so that more of them count for more",
    "q_fedavg": "an update weighs what its client's loss says",
}
"""Aggregators for which equal updates need not come to that update bit for bit, and why."""


def of_dtype(bundle, dtype):
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in bundle.items()}


def test_equal_updates_come_to_that_update_bit_for_bit(aggregator_option, make_part, facts_of_model, updates):
    aggregator, (drawn,) = make_part("aggregator", aggregator_option), updates(cohort=(1,))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        facts = replace(facts_of_model, model=of_dtype(facts_of_model.model, dtype))
        one = replace(drawn, **{name: of_dtype(getattr(drawn, name), dtype) for name in ("delta", "buffers", "extras")})
        for sizes in ((1, 1, 1), (7000, 3, 901, 50, 12345, 7, 1), (10**9,) * 9):
            alone, together = (
                Run(aggregator, facts).aggregate([replace(one, client_id=k, num_samples=n) for k, n in enumerate(numbers, 1)])
                for numbers in (sizes[:1], sizes)
            )
            assert state.all_finite(together), (dtype, sizes)
            assert aggregator_option in NO_MEAN_OF_EQUALS or state.digest(together) == state.digest(alone), (dtype, sizes)

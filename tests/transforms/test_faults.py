"""Clients that are broken, or attack: who they are, what they send, what they train on, and what stays as it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from fedfacet import state
from fedfacet.build import build
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.counts import LabelHistogram
from fedfacet.errors import ConfigError
from fedfacet.transforms import LabelFlip, RandomUpdate, SignFlip
from fedfacet.types import Broadcast, ClientTask, ClientUpdate

FAULTS = [RandomUpdate, SignFlip]


def update_of(client_id, delta, **others):
    return ClientUpdate(client_id, delta, {"mean": torch.ones(2)}, 10, 5, 5.0, {"loss_sum": 1.0, "num_seen": 10}, **others)


@pytest.fixture
def delta():
    return {"a": torch.arange(6.0).view(2, 3), "b": -torch.ones(4, dtype=torch.float64), "scalar": torch.tensor(2.0)}


@pytest.mark.parametrize("fault", FAULTS)
def test_only_named_clients_send_something_else_and_only_another_delta(fault, delta):
    transform = fault(clients=[1, 3], scale=2.0)
    for client_id in range(5):
        update = update_of(client_id, delta, memory={"m": torch.ones(2)}, extras={"e": torch.ones(2)})
        sent = transform.apply(update, np.random.default_rng(0))
        assert (sent is update) is (client_id not in (1, 3))
        assert replace(sent, delta=delta) == replace(update, delta=delta)
        assert [(t.shape, t.dtype) for t in sent.delta.values()] == [(t.shape, t.dtype) for t in delta.values()]


@pytest.mark.parametrize("scale", [1.0, 0.5, 10.0])
def test_a_flipped_update_points_the_other_way(delta, scale):
    sent = SignFlip(clients=[0], scale=scale).apply(update_of(0, delta), np.random.default_rng(0))
    assert all(torch.equal(sent.delta[name], -scale * delta[name]) for name in delta)


def test_noise_is_gaussian_of_its_size_and_tells_nothing_of_what_was_learnt():
    """Kolmogorov and Smirnov on 30,000 entries."""
    transform = RandomUpdate(clients=[0], scale=0.7)
    learnt = [{"a": torch.full((200, 100), value), "b": torch.full((10_000,), value)} for value in (3.0, 0.0)]
    one, other = (transform.apply(update_of(0, delta), np.random.default_rng(1)).delta for delta in learnt)
    assert state.digest(one) == state.digest(other)
    for name in ("a", "b"):
        assert kstest(one[name].flatten().numpy(), norm(scale=0.7).cdf).pvalue > 0.001
    assert abs(np.corrcoef(one["a"].flatten()[:10_000], one["b"])[0, 1]) < 4 / 100  # tensors do not share their noise


def test_noise_differs_between_clients_and_rounds_and_not_between_runs(tiny_federation):
    clients = tiny_federation(transforms=[RandomUpdate(clients=[0, 1])]).engine.clients
    update = update_of(0, {"a": torch.zeros(5)})

    def sent(client_id, round):
        task = ClientTask(client_id, round, 0, Broadcast({}))
        return tuple(clients.transformed(replace(update, client_id=client_id), task).delta["a"].tolist())

    drawn = {(k, round): sent(k, round) for k in (0, 1) for round in (1, 2)}
    assert len(set(drawn.values())) == 4
    assert all(sent(*key) == value for key, value in drawn.items())


# Labels


def test_flipped_classes_change_places_and_shuffled_ones_keep_their_counts():
    y = np.array([0, 0, 1, 2, 2, 2, 4] * 5)
    flip, shuffle = LabelFlip(clients=[1, 2]), LabelFlip(clients=[1, 2], how="shuffle")
    assert flip.relabelled(1, y, 5).tolist() == [4 - one for one in y]
    first, second = (shuffle.relabelled(client_id, y, 5) for client_id in (1, 2))
    assert np.bincount(first).tolist() == np.bincount(second).tolist() == np.bincount(y).tolist()
    assert first.tolist() != second.tolist(), "every client has a draw of its own"
    assert first.tolist() != LabelFlip(clients=[1], how="shuffle", seed=1).relabelled(1, y, 5).tolist()
    assert first.tolist() == shuffle.relabelled(1, y, 5).tolist()
    assert all(one.relabelled(0, y, 5) is y for one in (flip, shuffle))


@pytest.mark.parametrize("how", ["flip", "shuffle"])
def test_a_client_trains_on_wrong_labels_answers_by_them_and_nobody_else_does(how, tiny_federation):
    """As if the data set had had them, and only there."""
    plain, ours = (tiny_federation(transforms=faults) for faults in ([], [LabelFlip(clients=[1], how=how)]))
    theirs, clients = plain.engine.clients, ours.engine.clients
    wrong = clients.partition.indices[1]
    elsewhere = np.setdiff1d(np.arange(len(clients.dataset.y)), wrong)
    assert (clients.shown.y[elsewhere] == clients.dataset.y[elsewhere]).all()
    assert (clients.shown.y[wrong] != clients.dataset.y[wrong]).any()
    assert (clients.dataset.y == theirs.dataset.y).all(), "who measures does not believe them"
    assert clients.facts.data_digest == theirs.facts.data_digest
    as_it_were = replace(theirs, dataset=replace(theirs.dataset, y=clients.shown.y))
    for client_id in range(clients.partition.num_clients):
        task = ClientTask(client_id, 1, 0, Broadcast(ours.state.model))
        sent, honest, literal = (one.train(task) for one in (clients, theirs, as_it_were))
        assert (state.digest(sent.delta) == state.digest(honest.delta)) is (client_id != 1)
        assert state.digest(sent.delta) == state.digest(literal.delta)
        answer, expected = (answer_query(one, LabelHistogram(), task).value for one in (clients, as_it_were))
        assert answer == expected


def test_clients_that_hide_attributes_may_have_wrong_labels_too(tiny_federation):
    clients = tiny_federation(transforms=[LabelFlip(clients=[0])]).engine.clients
    hidden = replace(clients, hides_attributes=True)
    assert (hidden.shown.a == -1).all()
    assert (hidden.shown.y == clients.shown.y).all()


def test_without_a_client_with_wrong_labels_nothing_is_copied(tiny_federation):
    clients = tiny_federation(transforms=[SignFlip(clients=[0])]).engine.clients
    assert clients.shown is clients.dataset


# What is refused


@pytest.mark.parametrize("fault", [RandomUpdate, SignFlip, LabelFlip])
@pytest.mark.parametrize("bad", [-1, 0.5, True, "1"])
def test_what_is_no_client_is_refused(fault, bad):
    with pytest.raises(ValueError, match="Expected `clients` to be a whole number"):
        fault(clients=[0, bad])


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("fault", FAULTS)
def test_scales_out_of_range_are_refused(fault, value):
    with pytest.raises(ValueError, match="Expected `scale`"):
        fault(scale=value)


def test_other_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match="Expected `how` to be 'flip' or 'shuffle'"):
        LabelFlip(how="swap")
    with pytest.raises(ValueError, match="Expected `seed`"):
        LabelFlip(seed=-1)


@pytest.mark.parametrize("option", ["random_update", "sign_flip", "label_flip"])
def test_clients_that_do_not_exist_are_refused(option, job_of, tmp_path):
    job = job_of("~experiment", "debug=smoke", "selector=uniform", "callbacks=[]", "logger=[]", f"transforms={option}")
    number = build(job, tmp_path).facts.num_clients
    job.transforms[option].clients = [number - 1]
    build(job, tmp_path)
    job.transforms[option].clients = [0, number]
    with pytest.raises(
        ConfigError, match=rf"^Expected the `clients` of \w+ to be among .*'s {number}, from 0, but got {number}: "
    ):
        build(job, tmp_path)

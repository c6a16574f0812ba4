"""What a client's batches are, with and without augmentation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.prediction import predict
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.types import Broadcast, ClientTask

WHOLE = LocalTraining(batch_size=100, amount=3)
"""Three steps on one and the same batch."""


class Recorded(CropAndFlip):
    """Notes what it made of the images."""

    seen = []  # noqa: RUF012

    def __call__(self, pixels, generator):
        self.seen.append(super().__call__(pixels, generator))
        return self.seen[-1]


@pytest.fixture
def augmented(tiny_clients):
    """Return clients whose images are shifted and mirrored, and the list in which the results are noted."""
    clients = tiny_clients(local=WHOLE)
    Recorded.seen.clear()
    return replace(clients, dataset=replace(clients.dataset, augmentation=Recorded(padding=1))), Recorded.seen


def task_for(clients, **settings):
    keys = {"client_id": 1, "round": 3, "seed": 0} | settings
    return ClientTask(**keys, broadcast=Broadcast(state.clone(clients.program.tensors)))


def test_a_batch_is_augmented_only_for_training(augmented):
    clients, seen = augmented
    plain = clients.data(1).batch(np.arange(4))
    assert not seen
    changed = clients.batch(clients.partition.indices[1][:4], task_for(clients), 0)
    assert len(seen) == 1
    assert not torch.equal(changed.x, plain.x)
    assert torch.equal(changed.y, plain.y)


def test_no_generator_is_made_where_nothing_is_augmented(tiny_clients, monkeypatch):
    clients = tiny_clients()
    monkeypatch.setattr(rng, "stream", None)
    clients.batch(clients.partition.indices[1][:4], task_for(clients), 0)


def test_every_step_round_client_and_seed_has_an_augmentation_of_its_own(augmented):
    clients, seen = augmented
    for task in (task_for(clients), *(task_for(clients, **{key: 2}) for key in ("client_id", "round", "seed"))):
        clients.train(task)
    assert len({images.numpy().tobytes() for images in seen}) == len(seen) == 12


def test_training_that_is_put_down_and_taken_up_sees_the_same_images(augmented):
    clients, seen = augmented
    task = task_for(clients)
    whole = clients.train(task)
    update = clients.train_part(task, clients.train_part(task, None, 2), None)
    assert state.digest(update.delta) == state.digest(whole.delta)
    assert all(torch.equal(first, again) for first, again in zip(seen[:3], seen[3:], strict=True))
    assert len(seen) == 6


def test_queries_and_evaluation_see_images_as_they_are(augmented):
    clients, seen = augmented
    assert len(list(clients.data(0).batches())) == 1
    predict(clients, state.clone(clients.program.tensors), [clients.dataset.test])
    assert not seen


def test_the_stream_is_named_by_seed_round_client_and_step(augmented):
    clients, _ = augmented
    task, indices = task_for(clients, client_id=1, round=3, seed=5), clients.partition.indices[1]
    expected = clients.dataset.batch(indices, generator=rng.stream(5, "augmentation", 3, 1, 4))
    assert torch.equal(clients.batch(indices, task, 4).x, expected.x)
    assert not torch.equal(clients.batch(indices, task, 5).x, expected.x)

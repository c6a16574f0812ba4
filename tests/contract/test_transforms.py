"""What every transform of an update keeps to."""

from dataclasses import replace

import numpy as np
import pytest

from fedfacet import config, state


@pytest.fixture
def transforms(transforms_option, node_of):
    return [config.make(node) for node in node_of("transforms", transforms_option).values()]


def test_an_update_stays_an_update(transforms, make_update):
    for scale in (0.0, 1e-6, 1.0, 1e6):
        update = make_update(3)
        update = replace(update, delta=state.scaled(update.delta, scale))
        for transform in transforms:
            sent = transform.apply(update, np.random.default_rng(0))
            assert sent.client_id == 3
            assert [(n, t.shape, t.dtype) for n, t in sent.delta.items()] == [
                (n, t.shape, t.dtype) for n, t in update.delta.items()
            ]
            assert list(sent.buffers) == list(update.buffers)
            assert state.all_finite(sent.delta | sent.buffers)
            assert (sent.num_samples, sent.num_steps) == (update.num_samples, update.num_steps)


def test_what_it_is_given_is_not_written_to(transforms, make_update):
    update = make_update(3)
    update = replace(update, delta=state.scaled(update.delta, 1e3))
    before = state.digest(update.delta | update.buffers)
    for transform in transforms:
        transform.apply(update, np.random.default_rng(0))
        assert state.digest(update.delta | update.buffers) == before


def test_everything_random_comes_from_the_generator(transforms, make_update):
    for transform in transforms:
        digests = {state.digest(transform.apply(make_update(3), np.random.default_rng(1)).delta) for _ in range(3)}
        assert len(digests) == 1

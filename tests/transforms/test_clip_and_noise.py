"""Noise on updates: its size, what is left alone, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from fedfacet import state
from fedfacet.build import build
from fedfacet.errors import ConfigError
from fedfacet.transforms import ClipAndNoise, ClipUpdate
from fedfacet.types import ClientUpdate


def update_of(delta, **others):
    return ClientUpdate(0, delta, {}, 10, 5, 5.0, {"loss_sum": 1.0, "num_seen": 10}, **others)


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 1e6])
def test_without_noise_it_is_clipping(scale):
    delta = {"a": scale * torch.arange(6.0).view(2, 3), "b": -scale * torch.ones(4)}
    for norm_ in (0.5, 3.0):
        sent = ClipAndNoise(clip_norm=norm_, noise_multiplier=0).apply(update_of(delta), np.random.default_rng(0))
        clipped = ClipUpdate(clip_norm=norm_).apply(update_of(delta), np.random.default_rng(0))
        assert all(torch.equal(sent.delta[name], clipped.delta[name]) for name in delta)


def test_noise_is_gaussian_and_of_its_size_in_every_tensor():
    """Kolmogorov and Smirnov on 40,000 entries; what is left of the delta is its clipped value."""
    delta = {"a": torch.full((200, 150), 3.0), "b": torch.full((10_000,), -1.0), "scalar": torch.tensor(2.0)}
    transform = ClipAndNoise(clip_norm=2.0, noise_multiplier=0.7)
    sent = transform.apply(update_of(delta), np.random.default_rng(0))
    factor = 2.0 / state.norm(delta)
    for name in ("a", "b"):
        noise = (sent.delta[name] - factor * delta[name]).flatten().numpy()
        assert kstest(noise, norm(scale=1.4).cdf).pvalue > 0.001
        assert abs(noise.std() / 1.4 - 1) < 4 / math.sqrt(2 * len(noise))
    a, b = (sent.delta[name].flatten()[:10_000] for name in ("a", "b"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / 100  # tensors do not share their noise
    assert sent.delta["scalar"].shape == ()


def test_noise_does_not_depend_on_the_update():
    """Or the difference of two noised updates would show more than their difference."""
    transform = ClipAndNoise(clip_norm=1.0, noise_multiplier=5.0)
    small, none = ({"a": torch.full((50,), value, dtype=torch.float64)} for value in (0.1, 0.0))
    sent, empty = (transform.apply(update_of(delta), np.random.default_rng(3)).delta["a"] for delta in (small, none))
    assert torch.allclose(sent - empty, small["a"], atol=1e-12)


def test_nothing_else_is_touched():
    update = update_of({"a": torch.ones(3)}, memory={"m": torch.ones(2)})
    sent = ClipAndNoise().apply(update, np.random.default_rng(0))
    assert replace(sent, delta=update.delta) == update


def test_what_is_no_number_stays_none():
    for bad in (math.nan, math.inf):
        for noise in (0.0, 1.0):
            transform = ClipAndNoise(noise_multiplier=noise)
            sent = transform.apply(update_of({"a": torch.tensor([bad, 1.0])}), np.random.default_rng(0))
            assert not state.all_finite(sent.delta)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["clip_norm", "noise_multiplier"])
def test_values_out_of_range_are_refused(key, value):
    with pytest.raises(ValueError, match=f"`{key}`"):
        ClipAndNoise(**{key: value})
    with pytest.raises(ValueError, match="`clip_norm`"):
        ClipAndNoise(clip_norm=0.0)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("model=resnet8",), "running statistics, .*running_mean"),
        (("objective=fedpac", "aggregator=fedpac"), "'fedpac/"),
        (("correction=scaffold", "aggregator=scaffold"), "'scaffold/"),
    ],
)
def test_what_it_does_not_cover_is_refused(job_of, tmp_path, overrides, sentence):
    usual = ("~experiment", "debug=smoke", "selector=uniform", "aggregator=fedavg", "callbacks=[]", "logger=[]")
    given = {override.partition("=")[0] for override in overrides}
    job = job_of(*(one for one in usual if one.partition("=")[0] not in given), *overrides, "transforms=clip_and_noise")
    with pytest.raises(ConfigError, match=sentence):
        build(job, tmp_path)
    job.transforms.clip_and_noise.noise_multiplier = 0
    build(job, tmp_path)

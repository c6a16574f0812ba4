import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedfacet import rng
from fedfacet.data.drawn_dogs import draw_dog
from fedfacet.data.spawrious import BREEDS, LOCATIONS, SyntheticSpawrious


def drawn(breed, location, size, seed=0):
    return draw_dog(breed, location, size, rng.stream(seed, "test"))


@pytest.mark.parametrize(("breed", "location"), list(itertools.product(BREEDS, LOCATIONS)))
def test_every_cell_can_be_drawn(breed, location):
    image = drawn(breed, location, 32)
    assert image.shape == (32, 32, 3)
    assert image.dtype == np.uint8
    assert image.std() > 10


@pytest.mark.parametrize("size", [8, 33, 64, 224])
def test_every_size_can_be_drawn(size):
    assert drawn("corgi", "snow", size).shape == (size, size, 3)


def test_another_size_shows_the_same_scene():
    def small(size, seed):
        image = Image.fromarray(drawn("labrador", "beach", size, seed)).convert("L").resize((24, 24), Image.Resampling.BOX)
        return np.asarray(image, dtype=float).ravel()

    for seed in range(5):
        assert np.corrcoef(small(72, seed), small(192, seed))[0, 1] > 0.97
        assert np.corrcoef(small(72, seed), small(192, seed + 1))[0, 1] < 0.95


def test_labels_cells_and_split():
    dataset = SyntheticSpawrious(classes=BREEDS, attributes=LOCATIONS, image_size=16, samples_per_cell=20).load()
    assert np.bincount(dataset.y * 6 + dataset.a).tolist() == [20] * 24
    assert np.bincount(dataset.y[dataset.test] * 6 + dataset.a[dataset.test]).tolist() == [2] * 24
    assert np.array_equal(np.union1d(dataset.train, dataset.test), np.arange(480))
    assert dataset.class_names == BREEDS
    assert dataset.attribute_names == LOCATIONS
    assert dataset.y.dtype == dataset.a.dtype == np.int64


def test_default_has_room_for_the_paper_federations():
    """GAI and Spawrious4 ask for 2000 training samples of a cell; 300 more validate."""
    dataset = SyntheticSpawrious().load()
    assert len(dataset.train) >= 4 * 2300
    assert len(dataset.test) == 4 * 256


def test_images_depend_on_seed_and_position_alone():
    whole, again, other = (SyntheticSpawrious(image_size=16, samples_per_cell=5, seed=seed).load().inputs for seed in (0, 0, 1))
    at_once = whole.fetch(np.arange(20))
    one_by_one = torch.cat([again.fetch(np.array([index])) for index in reversed(range(20))]).flip(0)
    assert torch.equal(at_once, one_by_one)
    assert not torch.equal(at_once, other.fetch(np.arange(20)))
    uncached = SyntheticSpawrious(image_size=16, samples_per_cell=5, max_memory_gb=0.0).load().inputs
    assert torch.equal(at_once, uncached.fetch(np.arange(20)))
    source = SyntheticSpawrious(image_size=16, samples_per_cell=5)
    expected = draw_dog("dachshund", "beach", 16, rng.stream(source.seed, "synthetic-spawrious", 12))
    assert np.array_equal(at_once[12].permute(1, 2, 0).numpy(), expected)


def test_images_of_a_cell_differ():
    images = SyntheticSpawrious(image_size=16, samples_per_cell=5).load().inputs.fetch(np.arange(5)).float()
    for first, second in itertools.combinations(images, 2):
        assert (first - second).abs().mean() > 5


def test_constructing_and_loading_draw_nothing():
    """The default set would take most of a minute to draw."""
    images = SyntheticSpawrious().load().inputs
    assert len(images) == 4 * 2560
    assert not images._made.any()


def accuracy_per_group(num_common, num_rare):
    """Train a small network where breed and place agree on the diagonal of the cells; return its test accuracy per cell."""
    dataset = SyntheticSpawrious(image_size=24, samples_per_cell=320, test_fraction=0.25).load()
    cells = [dataset.train[dataset.y[dataset.train] * 2 + dataset.a[dataset.train] == group] for group in range(4)]
    sizes = (num_common, num_rare, num_rare, num_common)
    train = dataset.batch(np.concatenate([cell[:size] for cell, size in zip(cells, sizes, strict=True)]))
    test = dataset.batch(dataset.test)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, 2, 1), nn.GroupNorm(4, 64), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 2)),
        )
        optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
        for _ in range(12):
            for batch in torch.randperm(len(train.y)).split(28):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(train.x[batch]), train.y[batch]).backward()
                optimizer.step()
    right = (network(test.x).argmax(dim=1) == test.y).float()
    return [right[(test.y * 2 + test.a) == group].mean().item() for group in range(4)]


@pytest.mark.slow
def test_the_breed_can_be_learned():
    assert min(accuracy_per_group(240, 240)) > 0.65


@pytest.mark.slow
def test_a_correlated_place_is_learned_instead_of_the_breed():
    """The point of the twin: a small network does well on the common cells and fails on the rare ones."""
    accuracy = accuracy_per_group(240, 12)
    assert min(accuracy[0], accuracy[3]) > 0.9
    assert max(accuracy[1], accuracy[2]) < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": ["cat"]}, "`classes` .* labrador, dachshund, bulldog, corgi"),
        ({"attributes": ["moon"]}, "`attributes` .* beach, snow, desert, jungle, mountain, dirt"),
        ({"image_size": 7}, "image_size`"),
        ({"samples_per_cell": 0}, "samples_per_cell`"),
        ({"test_fraction": 1.5}, "test_fraction`"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyntheticSpawrious(**arguments)

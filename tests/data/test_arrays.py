"""Data sets from arrays: what is kept as it is, what is converted, how the test set is drawn, and what is refused."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedfacet.data.arrays import dataset_from_arrays, dataset_from_torch
from fedfacet.data.fingerprint import fingerprint

X = np.arange(80, dtype=np.float32).reshape(20, 4)
Y = np.arange(20) % 2
A = np.arange(20) // 10


def test_every_group_gives_the_same_share_to_the_test():
    y, a = np.repeat([0, 0, 1, 1], [100, 40, 20, 2]), np.repeat([0, 1, 0, 1], [100, 40, 20, 2])
    dataset = dataset_from_arrays(np.zeros((162, 1)), y, a, test=0.25)
    assert np.bincount(2 * y[dataset.test] + a[dataset.test]).tolist() == [25, 10, 5, 1]
    assert np.array_equal(np.sort(np.concatenate([dataset.train, dataset.test])), np.arange(162))
    assert (np.diff(dataset.train) > 0).all()
    assert (np.diff(dataset.test) > 0).all()
    again, other = (dataset_from_arrays(np.zeros((162, 1)), y, a, test=0.25, seed=seed) for seed in (0, 1))
    assert np.array_equal(again.test, dataset.test)
    assert not np.array_equal(other.test, dataset.test)


@pytest.mark.parametrize("given", [np.float64, np.float16, bool, torch.float64])
def test_numbers_become_float32(given):
    x = torch.from_numpy(X % 2).to(given) if isinstance(given, torch.dtype) else (X % 2).astype(given)
    dataset = dataset_from_arrays(x, Y)
    batch = dataset.batch(np.arange(20))
    assert batch.x.dtype == torch.float32
    assert torch.equal(batch.x, torch.from_numpy(X % 2))
    assert dataset.mean is dataset.std is None
    assert dataset.attribute_names == ("none",)
    assert batch.a.tolist() == [0] * 20


@pytest.mark.parametrize("given", [np.int16, np.int64, np.uint32])
def test_whole_numbers_are_tokens(given):
    batch = dataset_from_arrays(X.astype(given), Y).batch(np.arange(20))
    assert batch.x.dtype == torch.int64
    assert batch.x.tolist() == X.astype(int).tolist()


@pytest.mark.parametrize("y", [Y + 0.5, np.stack([Y, 1 - Y], axis=1), Y[:, None] + 0.5])
def test_numbers_in_place_of_classes_are_targets(y):
    dataset = dataset_from_arrays(X, y, A)
    assert dataset.class_names == ("all",)
    assert not dataset.y.any()
    batch = dataset.batch(dataset.test)
    assert batch.y.dtype == torch.float32
    assert np.array_equal(batch.y, y[dataset.test].astype(np.float32))
    assert np.bincount(A[dataset.test]).tolist() == [2, 2]
    apart = dataset_from_arrays(X, y, A, test=(X[:4], y[:4], A[:4]))
    assert np.array_equal(apart.batch(apart.test).y, y[:4].astype(np.float32))
    assert fingerprint(dataset) != fingerprint(dataset_from_arrays(X, y + 1.0, A))


def test_images_are_normalised_by_the_training_images():
    x = np.random.default_rng(0).integers(256, size=(20, 2, 5, 6), dtype=np.uint8)
    x[:, 1] = 7
    dataset = dataset_from_arrays(x, Y, test=0.5)
    train = dataset.batch(dataset.train).x.double()
    assert train[:, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert train[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert dataset.std[1] == 1, "a channel without variance"
    given = dataset_from_arrays(x, Y, test=0.5, mean=(0.5, 0.5), std=(0.25, 0.25))
    torch.testing.assert_close(given.batch(np.arange(3)).x, (torch.from_numpy(x[:3]) / 255 - 0.5) / 0.25)


def test_a_test_set_of_ones_own_comes_last():
    dataset = dataset_from_arrays(X[:15], Y[:15], A[:15], test=(X[15:], Y[15:], A[15:]), columns={"writer": np.arange(20)})
    assert dataset.train.tolist() == list(range(15))
    assert dataset.test.tolist() == list(range(15, 20))
    batch = dataset.batch(np.arange(20))
    assert batch.x.tolist() == X.tolist()
    assert (batch.y.tolist(), batch.a.tolist()) == (Y.tolist(), A.tolist())
    assert dataset.columns["writer"].tolist() == list(range(20))


def test_arrays_are_copied():
    x, y = torch.from_numpy(X.copy()), Y.copy()
    dataset = dataset_from_arrays(x, y)
    x.zero_()
    y[:] = 0
    assert dataset.batch(np.arange(20)).x.tolist() == X.tolist()
    assert dataset.y.tolist() == Y.tolist()


def test_a_torch_data_set_is_read_once():
    class Counting(TensorDataset):
        read = []  # noqa: RUF012

        def __getitem__(self, index):
            self.read.append(index)
            return super().__getitem__(index)

    source = Counting(torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(A))
    dataset = dataset_from_torch(source, test=TensorDataset(*source.tensors), class_names=["no", "yes"])
    assert source.read == list(range(20))
    assert len(dataset.train) == len(dataset.test) == 20
    assert dataset.class_names == ("no", "yes")
    expected = dataset_from_arrays(X, Y, A, test=(X, Y, A)).batch(np.arange(40))
    assert all(map(torch.equal, dataset.batch(np.arange(40)), expected))
    plain = dataset_from_torch([(row.tolist(), int(label)) for row, label in zip(X, Y, strict=True)])
    assert plain.batch(np.arange(20)).x.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((X, Y[:19]), {}, r"`y` to have the shape \(20,\), one label a sample, but got \(19,\)"),
        ((X, Y, A[:3]), {}, "`a` to have the shape"),
        ((X, Y), {"columns": {"writer": Y[:3]}}, r"`columns\['writer'\]` to have the shape"),
        ((X, Y), {"columns": {"y": Y}}, "other names than y and a"),
        ((np.where(X == 3, np.nan, X), Y), {}, "`x` to be finite"),
        ((np.where(X == 3, 1e300, X.astype(float)), Y), {}, "`x` to be finite in float32"),
        ((X, Y - 2.0), {}, "`y` to be whole numbers, 0 or larger, but got -2.0"),
        ((X, np.where(Y == 0, np.inf, 0.5)), {}, r"`y` to be finite in float32, but y\[0\] holds NaN or infinity"),
        ((X, np.where(Y, np.nan, 0)), {}, "`y` to be whole numbers, 0 or larger, but got nan"),
        ((X, Y - 1), {}, "`y` to be whole numbers, 0 or larger, but got -1"),
        ((X, Y, -A), {}, "`a` to be whole numbers, 0 or larger, but got -1"),
        ((X, 10**12 * Y), {}, "but label 1 has none: number the labels from 0 without gaps"),
        ((X, Y), {"class_names": ["one"]}, "`class_names` to have a name for each label from 0 to 1, but got 1"),
        ((X.astype(object), Y), {}, "`x` to hold numbers .* type object"),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, "`x` to hold numbers in rows of one length"),
        ((X, Y.astype(str)), {}, "`y` to hold numbers"),
        ((X * 1j, Y), {}, "`x` to hold numbers"),
        ((X[:0], Y[:0]), {}, r"`x` to have the shape \(N, ...\)"),
        ((X[:, 0], Y), {}, r"`x` to have the shape \(N, ...\)"),
        ((X.astype(np.uint8), Y), {}, "uint8 to be images"),
        ((np.zeros((20, 8, 8, 3), np.uint8), Y), {}, r"images of shape \(N, C, H, W\), but got \(20, 8, 8, 3\).*moveaxis"),
        ((X, np.r_[Y[:19], 2]), {}, "at least two samples of every"),
        *(((X, Y), {"test": test}, r"Expected `test` in \(0, 1\)") for test in (0, 1, -0.1, float("nan"))),
        *(((X, Y), {"test": test}, r"`test` to be a number in \(0, 1\) or arrays \(x, y\)") for test in (None, "x", (X, Y, A))),
        ((X, Y), {"test": (X[:, :2], Y)}, "the others' shape and type"),
        ((X, Y), {"mean": (0.5,), "std": (0.5,)}, "`mean` and `std` of images alone"),
        ((np.zeros((20, 1, 2, 2), np.uint8), Y), {"mean": (0.5,)}, "`mean` and `std` of images alone"),
        ((np.zeros((20, 1, 2, 2), np.uint8), Y), {"mean": (0.5,), "std": (0,)}, "a `std` larger than 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_data_set_is_refused_in_one_sentence(arguments, settings, message):
    with pytest.raises(ValueError, match=message) as refusal:
        dataset_from_arrays(*arguments, **settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "one or more samples"),
        (iter([(1, 2)]), "a map-style data set"),
        ([(torch.zeros(3), 0), (torch.zeros(3), 0, 1)], "with 2 or 3 values each"),
        ([torch.zeros(3)], "with 1 values each"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 0)], "samples of one shape"),
        ([("text", 0)], "samples of one shape that hold numbers"),
    ],
)
def test_what_is_no_torch_data_set_is_refused_in_one_sentence(source, message):
    with pytest.raises(ValueError, match=message):
        dataset_from_torch(source)

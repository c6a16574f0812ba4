"""CIFAR-100, on the real images where they are at hand and on generated ones of the same layout."""

import io
import pickle
import shutil

import numpy as np
import pytest
import torch
import torchvision

from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar100 import CIFAR100
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar100")
    CIFAR100(root=str(root)).generate(None)
    return root


@pytest.fixture(scope="module")
def real(cifar100_root):
    return CIFAR100(root=str(cifar100_root)).load()


def test_real_images_are_split_450_50_and_100_a_class(real):
    assert [len(split) for split in (real.train, real.val, real.test)] == [45_000, 5_000, 10_000]
    for split, per_class in ((real.train, 450), (real.val, 50), (real.test, 100)):
        assert np.bincount(real.y[split]).tolist() == [per_class] * 100
    assert not set(real.train) & set(real.val)
    assert (np.sort(np.concatenate([real.train, real.val])) == np.arange(50_000)).all()
    assert (real.class_names[19], real.class_names[49]) == ("cattle", "mountain")
    assert {real.columns["coarse"][position] for position in np.flatnonzero(real.y == 19)} == {11}, "large omnivores"


def test_real_images_have_the_published_statistics(real):
    """Mean and deviation of the training images' channels to eight digits, computed in whole numbers."""
    counts = torch.zeros(3, 256, dtype=torch.int64)
    for start in range(0, 50_000, 5_000):
        pixels = real.inputs.fetch(np.arange(start, start + 5_000)).transpose(0, 1).flatten(1)
        counts += torch.stack([torch.bincount(channel, minlength=256) for channel in pixels.int()])
    levels = np.arange(256) / 255
    shares = counts.numpy() / (50_000 * 1024)
    mean = shares @ levels
    deviation = np.sqrt(shares @ levels**2 - mean**2)
    assert mean == pytest.approx([0.50707516, 0.48654887, 0.44091784], abs=5e-9)
    assert deviation == pytest.approx([0.26733429, 0.25643846, 0.27615047], abs=5e-9)
    assert real.mean == pytest.approx(mean, abs=2e-4), "as the released code rounds them"
    assert real.std == pytest.approx(deviation, abs=2e-4)


def test_real_images_are_those_that_torchvision_reads(real, cifar100_root):
    class Unchecked(torchvision.datasets.CIFAR100):
        train_list = (["train", None],)
        test_list = (["test", None],)
        meta = {"filename": "meta", "key": "fine_label_names", "md5": None}  # noqa: RUF012

    official = Unchecked(str(cifar100_root), train=False)
    assert official.classes == list(real.class_names)
    positions = np.array([0, 4_321, 9_999])
    fetched = real.inputs.fetch(50_000 + positions).permute(0, 2, 3, 1).numpy()
    assert (fetched == official.data[positions]).all()
    assert real.y[50_000 + positions].tolist() == [official.targets[position] for position in positions]


def test_the_split_hangs_on_the_seed_alone(generated):
    splits = [CIFAR100(root=str(generated), seed=seed).load().val.tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    assert CIFAR100(root=str(generated), labels="coarse").load().val.tolist() == splits[0]


def test_superclasses_may_be_the_classes(generated):
    fine, coarse = (CIFAR100(root=str(generated), labels=labels).load() for labels in ("fine", "coarse"))
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert (coarse.y == fine.columns["coarse"]).all()
    assert (coarse.columns["fine"] == fine.y).all()
    assert coarse.class_names == tuple(f"coarse_{number:02d}" for number in range(20))
    with pytest.raises(ValueError, match=r"Expected `dataset\.labels` to be 'fine' or 'coarse', but got 'both'"):
        CIFAR100(root=str(generated), labels="both")


def test_only_training_is_augmented(generated):
    dataset = CIFAR100(root=str(generated)).load()
    assert dataset.augmentation == CropAndFlip(padding=4)
    plain, again = (dataset.batch(dataset.val[:8]).x for _ in range(2))
    assert torch.equal(plain, again)
    assert not torch.equal(dataset.batch(dataset.val[:8], generator=np.random.default_rng(0)).x, plain)
    assert CIFAR100(root=str(generated), augment=False).load().augmentation is None


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"'meta'.*cifar-100-python.*169 MB.*dataset\.download=true.*digits_gsc"):
        CIFAR100(root=str(tmp_path)).load()


def damaged(generated, tmp_path, part, content):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cifar-100-python" / part).write_bytes(content)
    return CIFAR100(root=str(tmp_path))


@pytest.mark.parametrize("part", ["train", "test", "meta"])
def test_a_truncated_file_is_named(generated, tmp_path, part):
    content = (generated / "cifar-100-python" / part).read_bytes()
    with pytest.raises(DatasetCorruptError, match=rf"cifar-100-python/{part} to be a whole file.*fetch it again"):
        damaged(generated, tmp_path, part, content[: len(content) // 2]).load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c | {"data": c["data"][:-1]}, r"images of shape \(199, 3072\) and 200 labels"),
        (lambda c: c | {"data": c["data"].astype(float)}, "3072 bytes"),
        (lambda c: c | {"data": c["data"].tolist()}, "images of shape None"),
        (lambda c: c | {"fine_labels": [label % 99 for label in c["fine_labels"]]}, "100 classes"),
        (lambda c: {key: value for key, value in c.items() if key != "fine_labels"}, "KeyError: 'fine_labels'"),
        (lambda c: [1, 2, 3], "cannot be read"),
    ],
)
def test_other_content_is_refused(generated, tmp_path, change, said):
    content = pickle.loads((generated / "cifar-100-python" / "test").read_bytes())
    with pytest.raises(DatasetCorruptError, match=said):
        damaged(generated, tmp_path, "test", pickle.dumps(change(content))).load()


class Attack:
    """A pickle that runs a command where it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_a_file_cannot_run_code(generated, tmp_path):
    with pytest.raises(DatasetCorruptError, match=r"asks for .*open"):
        damaged(generated, tmp_path / "root", "train", pickle.dumps(Attack(tmp_path / "written"))).load()
    assert not (tmp_path / "written").exists()


def test_files_that_python_2_wrote_can_be_read(generated, tmp_path):
    """As the official ones: protocol 2, bytes as text, numpy's old module name, 0 and 1 in a dtype."""
    content = pickle.loads((generated / "cifar-100-python" / "test").read_bytes())
    data = content.pop("data")
    rest = io.BytesIO()
    pickle.Pickler(rest, protocol=2).dump(content)
    raw = data.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([data.shape[0]]) + b"M" + data.shape[1].to_bytes(2, "little") + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    written = rest.getvalue()[:-1] + b"U\x04data" + array + b"s."
    dataset = damaged(generated, tmp_path, "test", written).load()
    assert (dataset.inputs.fetch(dataset.test).numpy().reshape(200, -1) == data).all()

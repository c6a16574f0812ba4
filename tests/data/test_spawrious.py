import shutil
import tarfile

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from fedfacet import rng
from fedfacet.data.spawrious import ARCHIVE, BREEDS, LOCATIONS, Spawrious, hold_out
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

PER_CELL = 10
SIZE = 16


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("spawrious")
    source = Spawrious(root, classes=BREEDS[:3], attributes=LOCATIONS[:3], image_size=SIZE)
    source.generate(np.zeros((3, 3)))  # which makes ten images of each
    return root


@pytest.fixture
def root(generated, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(generated, tmp_path / "copy")


def test_paper_cell_gives_634_test_images():
    """Fidelity notes 1.1: 2 x 3168 images per cell, 634 of them test; 2536 test and 22808 train for 2 x 2 cells."""
    y, a = np.divmod(np.repeat(np.arange(4), 2 * 3168), 2)
    train, test = hold_out(y, a, 0.1, 0, "spawrious-test")
    assert (len(train), len(test)) == (22808, 2536)
    assert np.bincount(y[test] * 2 + a[test]).tolist() == [634] * 4
    assert np.array_equal(np.union1d(train, test), np.arange(len(y)))


@pytest.mark.parametrize("name", ["gsc", "gci", "gai", "spawrious4", "gci_100"])
def test_the_papers_federations_leave_every_cell_some_images_for_validation(checkout, name):
    """5,702 of a cell are left after the hold-out; GCI-100, the largest, takes 5,640 of them."""
    partition = OmegaConf.to_object(OmegaConf.load(checkout / "conf" / "partition" / f"{name}.yaml"))
    demand = np.sum([group["count"] * np.array(group["matrix"]) for group in partition["clients"]], axis=0)
    assert demand.max() + 50 <= 2 * 3168 - 634


def test_hold_out_is_the_head_of_the_named_permutation():
    y, a = np.array([0, 1, 0, 1, 0, 0, 1, 0] * 5), np.array([0, 0, 1, 1, 0, 1, 1, 0] * 5)
    _, test = hold_out(y, a, 0.4, 7, "spawrious-test")
    for label in (0, 1):
        for attribute in (0, 1):
            cell = np.flatnonzero((y == label) & (a == attribute))
            order = rng.stream(7, "spawrious-test", label, attribute).permutation(cell)
            assert set(order[: round(0.4 * len(cell))]) == {i for i in test if y[i] == label and a[i] == attribute}


def test_layout_labels_and_order(generated):
    dataset = Spawrious(generated, image_size=SIZE).load()
    assert len(dataset.y) == len(dataset.inputs) == 4 * PER_CELL
    assert dataset.class_names == ("labrador", "dachshund")
    assert dataset.attribute_names == ("beach", "snow")
    assert dataset.val is None
    names = [path.relative_to(generated / "spawrious224").as_posix() for path in dataset.inputs.paths]
    assert names == sorted(names)
    assert {name.split("/")[0] for name in names} == {"0", "1"}
    for name, label, attribute in zip(names, dataset.y, dataset.a, strict=True):
        _, location, breed, _ = name.split("/")
        assert (breed, location) == (dataset.class_names[label], dataset.attribute_names[attribute])
    assert dataset.inputs.fetch(np.array([0, 39])).shape == (2, 3, SIZE, SIZE)
    assert dataset.batch(np.array([0])).x.shape == (1, 3, SIZE, SIZE)


def test_indices_follow_the_order_of_the_names_given(generated):
    source = Spawrious(generated, classes=["bulldog", "labrador"], attributes=["desert", "beach", "snow"], image_size=SIZE)
    dataset = source.load()
    assert (dataset.num_classes, dataset.num_attributes) == (2, 3)
    for path, label, attribute in zip(dataset.inputs.paths, dataset.y, dataset.a, strict=True):
        assert path.parent.name == ["bulldog", "labrador"][label]
        assert path.parent.parent.name == ["desert", "beach", "snow"][attribute]


def test_split_is_balanced_reproducible_and_depends_on_its_seed(generated):
    first, again, other = (Spawrious(generated, image_size=SIZE, test_fraction=0.3, seed=seed).load() for seed in (0, 0, 1))
    assert np.bincount(first.y[first.test] * 2 + first.a[first.test]).tolist() == [3] * 4
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)
    assert np.array_equal(np.union1d(first.train, first.test), np.arange(4 * PER_CELL))


def test_split_does_not_depend_on_the_order_in_which_files_were_written(root):
    before = Spawrious(root, image_size=SIZE).load()
    folder = root / "spawrious224" / "0" / "beach" / "labrador"
    moved = [(path, path.read_bytes()) for path in sorted(folder.iterdir(), reverse=True)]
    for path, _ in moved:
        path.unlink()
    for path, content in moved:
        path.write_bytes(content)
    after = Spawrious(root, image_size=SIZE).load()
    assert before.inputs.paths == after.inputs.paths
    assert np.array_equal(before.test, after.test)


def test_what_systems_leave_beside_the_images_is_ignored(root):
    folder = root / "spawrious224" / "1" / "snow" / "dachshund"
    for name in ("._dachshund.png", ".DS_Store", "Thumbs.db", "notes.txt"):
        (folder / name).write_bytes(b"x")
    Image.new("RGB", (SIZE, SIZE)).save(folder / "z.PNG", "PNG")
    assert len(Spawrious(root, image_size=SIZE).load().y) == 4 * PER_CELL + 1


def test_missing_data_says_where_how_big_and_what_to_do(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        Spawrious(tmp_path / "data").load()
    for part in (
        str(tmp_path / "data" / "spawrious224"),
        "14.4 GB",
        "twice",
        "`python src/train.py experiment=spawrious_gsc dataset.download=true`",
        "experiment=spawrious_gsc_synthetic",
        "experiment=digits_gsc",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("gone", ["0/beach/dachshund", "1/snow/labrador", "1"])
def test_incomplete_data_names_the_folder(root, gone):
    shutil.rmtree(root / "spawrious224" / gone)
    with pytest.raises(DatasetCorruptError, match=rf"Expected images in {root}/spawrious224/{gone}"):
        Spawrious(root, image_size=SIZE).load()


def test_empty_folder_is_named(root):
    folder = root / "spawrious224" / "0" / "snow" / "labrador"
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(DatasetCorruptError, match=f"Expected images in {folder}, but got none"):
        Spawrious(root, image_size=SIZE).load()


def test_truncated_image_is_named_before_any_training(root):
    path = sorted((root / "spawrious224" / "1" / "beach" / "labrador").iterdir())[2]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DatasetCorruptError, match=f"{path} .*dataset.download=true"):
        Spawrious(root, image_size=SIZE).load()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": ["labrador", "poodle"]}, r"`classes` .* labrador, dachshund, bulldog, corgi, but got .*poodle"),
        ({"attributes": ["beach", "sea"]}, r"`attributes` .* beach, snow, desert, jungle, mountain, dirt, but got .*sea"),
        ({"classes": ["corgi", "corgi"]}, "distinct"),
        ({"classes": []}, "`classes`"),
        ({"classes": "labrador,poodle"}, "`classes`"),
        ({"test_fraction": 0.0}, "test_fraction` in"),
        ({"test_fraction": 1.0}, "test_fraction` in"),
        ({"image_size": 0}, "image_size`"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Spawrious(tmp_path, **arguments)


@pytest.fixture
def served(generated, serve, tmp_path):
    """The address of a local server with an archive as the real one is laid out."""
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / ARCHIVE, "w:gz") as tar:
        tar.add(generated / "spawrious224", "spawrious224")
    return f"{serve(folder)}/{ARCHIVE}?dl=1"


def test_download(served, generated, tmp_path):
    source = Spawrious(tmp_path / "data", image_size=SIZE, download=True, url=served)
    dataset = source.load()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["spawrious224", ARCHIVE, f"{ARCHIVE}.sha256"]
    reference = Spawrious(generated, image_size=SIZE).load()
    everything = np.arange(4 * PER_CELL)
    assert (dataset.inputs.fetch(everything) == reference.inputs.fetch(everything)).all()
    assert np.array_equal(dataset.test, reference.test)
    (tmp_path / "data" / ARCHIVE).unlink()
    source.load()  # what is unpacked is not fetched again


def test_unpacked_again_from_the_verified_archive(served, tmp_path):
    Spawrious(tmp_path / "data", image_size=SIZE, download=True, url=served).load()
    shutil.rmtree(tmp_path / "data" / "spawrious224")
    gone = "http://127.0.0.1:9/nobody"
    assert len(Spawrious(tmp_path / "data", image_size=SIZE, download=True, url=gone).load().y) == 4 * PER_CELL
    shutil.rmtree(tmp_path / "data" / "spawrious224")
    archive = tmp_path / "data" / ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(DatasetCorruptError, match=f"Expected {archive} to have the sha256"):
        Spawrious(tmp_path / "data", image_size=SIZE, download=True, url=gone).load()


def test_another_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("something"))
    source = Spawrious(tmp_path / "data", download=True, url=(tmp_path / "other.tar.gz").as_uri())
    with pytest.raises(DatasetCorruptError, match=r"to unpack to .*spawrious224"):
        source.load()


def test_generated_files_meet_the_demand(tmp_path):
    source = Spawrious(tmp_path, image_size=SIZE)
    demand = np.array([[30, 12], [12, 30]])
    source.generate(demand)
    dataset = source.load(demand)
    left = np.bincount(dataset.y[dataset.train] * 2 + dataset.a[dataset.train])
    assert (left.reshape(2, 2) > demand).all()
    assert len(dataset.test) > 0

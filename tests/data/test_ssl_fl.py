"""Retina and COVID-FL on generated files of SSL-FL's layout: who owns what, and what is refused."""

import shutil

import numpy as np
import pytest
from PIL import Image

from fedfacet.data.augmentation import ZoomTurnAndFlip
from fedfacet.data.federated import partition_and_hold_out
from fedfacet.data.medical import CovidFL, Retina
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError
from fedfacet.partitioners.natural import NaturalPartitioner

COVID_SPLIT = "12_clients/split_real"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Folders of both data sets."""
    root = tmp_path_factory.mktemp("ssl-fl")
    Retina(root=str(root / "Retina")).generate(None)
    CovidFL(root=str(root / "COVID-FL")).generate(None)
    return root


def retina(root, **settings):
    return Retina(root=str(root / "Retina"), **({"image_size": 16} | settings))


def covid(root, **settings):
    return CovidFL(root=str(root / "COVID-FL"), **({"image_size": 16} | settings))


def listed(file):
    return [line.split(",")[0] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("split", [1, 2, 3])
def test_retinas_clients_are_those_of_the_chosen_split(generated, split):
    dataset = retina(generated, split=split).load()
    tables = sorted((generated / "Retina" / f"5_clients/split_{split}").glob("*.csv"))
    train_names = sorted(name for table in tables for name in listed(table))
    for number, table in enumerate(tables):
        owned = np.flatnonzero(dataset.columns["client"] == number)
        assert [train_names[position] for position in owned] == sorted(listed(table))
    assert (dataset.columns["client"][dataset.test] == -1).all()


def test_the_natural_partition_has_a_client_per_table(generated):
    for dataset, count in ((retina(generated).load(), 5), (covid(generated).load(), 12)):
        partition, val = partition_and_hold_out(dataset, NaturalPartitioner(label="client"))
        assert partition.num_clients == count
        assert sum(map(len, partition.indices)) + len(val) == len(dataset.train)
        for number, client in enumerate(partition.indices):
            assert set(dataset.columns["client"][client]) == {number}


def test_covids_institutions_are_in_the_order_of_their_names(generated):
    dataset = covid(generated).load()
    for number, name in enumerate(sorted(CovidFL.CLIENTS)):
        owned = (generated / "COVID-FL" / COVID_SPLIT / f"{name}.csv").read_text().split()
        images = np.flatnonzero(dataset.columns["client"] == number)
        assert [dataset.inputs.paths[image].name for image in images] == sorted(owned)
    assert len(CovidFL.CLIENTS) == 12


def test_labels_and_images_are_those_of_the_files(generated):
    labels = dict(line.split(",") for line in (generated / "COVID-FL" / "labels.csv").read_text().splitlines())
    dataset = covid(generated).load()
    for position in (*dataset.train[::7], *dataset.test[::3]):
        path = dataset.inputs.paths[position]
        assert dataset.y[position] == float(labels[path.name])
        pixels = dataset.inputs.fetch(np.array([position]))[0].permute(1, 2, 0).numpy()
        assert (pixels == np.asarray(Image.open(path))).all()
    assert {path.parent.name for path in dataset.inputs.paths[: len(dataset.train)]} == {"train"}


def test_augmentation_and_statistics_are_fedlds(generated):
    assert retina(generated).load().augmentation == ZoomTurnAndFlip(0.6, 1.0, 10.0)
    assert covid(generated).load().augmentation == ZoomTurnAndFlip(0.8, 1.2, 10.0)
    assert retina(generated, augment=False).load().augmentation is covid(generated, augment=False).load().augmentation is None
    assert retina(generated).load().std == (0.0342, 0.0535, 0.0484)


GREY = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GREY.astype(np.uint8), GREY),
        (GREY / 12, np.rint(GREY / 12 * 255)),
        ((GREY * 20).astype(np.float64), GREY * 20),
        ((GREY * 20).astype(np.float32)[:, :, None], GREY * 20),
        (np.stack([GREY] * 4, axis=2).astype(np.int64) * 30, np.minimum(GREY * 30, 255)),
    ],
    ids=["bytes", "fractions", "numbers", "one channel", "four channels and too large"],
)
def test_arrays_of_every_kind_become_bytes(generated, tmp_path, array, expected):
    """A float image in [0, 1] that is cast to bytes as it is would be black."""
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    dataset = retina(tmp_path, image_size=4).load()
    path = dataset.inputs.paths[0]
    np.save(path, array.repeat(4, axis=0)[::3])  # 4 x 4
    pixels = dataset.inputs.fetch(np.array([0]))[0].numpy()
    assert (pixels == np.broadcast_to(np.asarray(expected).repeat(4, axis=0)[::3], (3, 4, 4))).all()


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2, 2)), np.zeros(5), np.full((4, 4), np.nan), np.zeros((4, 4), complex), np.array([[print]])]
)
def test_arrays_that_are_no_images_are_named(generated, tmp_path, array):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    dataset = retina(tmp_path).load()
    np.save(dataset.inputs.paths[3], array)
    with pytest.raises(DatasetCorruptError, match=rf"{dataset.inputs.paths[3].name}.*name its folder with dataset\.root=DIR"):
        dataset.inputs.fetch(np.array([3]))


def spoiled(generated, tmp_path, file, change):
    shutil.copytree(generated / "COVID-FL", tmp_path / "COVID-FL", dirs_exist_ok=True)
    path = tmp_path / "COVID-FL" / file
    path.write_text(change(path.read_text()))
    return covid(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (f"{COVID_SPLIT}/gz.csv", lambda text: text + "../../secret.png\n", r"below the data set's folder .*'\.\./\.\./secret"),
        (f"{COVID_SPLIT}/gz.csv", lambda text: "", "file names in .*gz.csv, but got none"),
        (f"{COVID_SPLIT}/gz.csv", lambda text: text + "test_0001.png\n", r"'test_0001\.png' is in test\.csv and in gz\.csv"),
        (f"{COVID_SPLIT}/gz.csv", lambda text: "train_0001.png\n", r"one owner, but .train_0001\.png. is in"),
        ("labels.csv", lambda text: text.replace("test_0002.png", "other.png"), r"1 have none, .*'test_0002\.png'"),
        ("labels.csv", lambda text: text + "test_0002.png,7\n", "label from 0 to 2 .* got 'test_0002.png,7'"),
        ("labels.csv", lambda text: text + "test_0002.png\n", "got 'test_0002.png'"),
        ("labels.csv", lambda text: text.replace(".0", ".5"), "label from 0 to 2"),
    ],
)
def test_tables_that_cannot_be_are_refused(generated, tmp_path, file, change, said):
    with pytest.raises(DatasetCorruptError, match=said):
        spoiled(generated, tmp_path, file, change).load()


def test_two_labels_of_one_image_are_refused(generated, tmp_path):
    def doubled(text):
        name, label = text.splitlines()[0].split(",")
        return text + f"{name},{(float(label) + 1) % 3}\n"

    with pytest.raises(DatasetCorruptError, match=r"one label of 'train_0000.png'"):
        spoiled(generated, tmp_path, "labels.csv", doubled).load()


def test_what_is_missing_is_named_with_a_remedy(generated, tmp_path):
    remedy = r"github\.com/rui-yan/SSL-FL, name its folder with dataset\.root=DIR, .*, or use `experiment=fedld_pneumonia "
    with pytest.raises(DatasetNotFoundError, match=rf"labels\.csv, but .*{remedy}"):
        covid(tmp_path).load()
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "COVID-FL" / "train" / "train_0003.png").unlink()
    with pytest.raises(DatasetNotFoundError, match=rf"1 are missing, the first of them .*train_0003\.png: .*{remedy}"):
        covid(tmp_path).load()
    shutil.rmtree(tmp_path / "Retina" / "5_clients" / "split_2")
    retina(tmp_path, split=1).load()
    with pytest.raises(DatasetNotFoundError, match=r"clients' tables in .*split_2"):
        retina(tmp_path, split=2).load()


def test_the_order_of_lines_does_not_matter(generated, tmp_path):
    backwards = spoiled(generated, tmp_path, f"{COVID_SPLIT}/sirm.csv", lambda text: "\n".join(reversed(text.splitlines())))
    ours, theirs = backwards.load(), covid(generated).load()
    assert (ours.y == theirs.y).all()
    assert (ours.columns["client"] == theirs.columns["client"]).all()


@pytest.mark.parametrize("settings", [{"split": 4}, {"image_size": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=f"dataset.{next(iter(settings))}"):
        Retina(root="", **settings)

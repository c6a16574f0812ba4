"""CelebA, UTKFace and FairFace on generated files of their layouts; no photograph of anybody was looked at."""

import shutil

import numpy as np
import pytest
from torchvision.datasets import CelebA as Torchvisions

from fedfacet.build import load_data
from fedfacet.config import compose_job, make
from fedfacet.data.faces import CelebA, FairFace, UTKFace
from fedfacet.data.federated import deal
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, InfeasiblePartitionError
from fedfacet.partitioners.synthetic import DirichletPartitioner

SOURCES = {"celeba": CelebA, "fairface": FairFace, "utkface": UTKFace}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The three data sets, by name, with few images."""
    roots = {name: tmp_path_factory.mktemp(name) for name in SOURCES}
    for name, source in SOURCES.items():
        source(root=roots[name], image_size=16).generate(None)
    return roots


@pytest.fixture
def copy_of(folders, tmp_path):
    """Return a function: name -> a copy to be damaged."""
    return lambda name: shutil.copytree(folders[name], tmp_path / name)


def load(name, root, **settings):
    return SOURCES[name](root=root, image_size=16, **settings).load()


@pytest.mark.parametrize("name", SOURCES)
def test_two_classes_two_groups_and_pictures_that_tell_them_apart(name, folders):
    dataset = load(name, folders[name])
    assert (dataset.num_classes, dataset.num_attributes) == (2, 2)
    means = dataset.inputs.fetch(np.arange(len(dataset.y))).double().mean(dim=(1, 2, 3)).numpy()
    groups = 2 * dataset.y + dataset.a
    assert all(means[groups == group].max() < means[groups == group + 1].min() for group in range(3))


# CelebA


def test_torchvision_reads_the_same_of_the_generated_celeba(folders, monkeypatch):
    monkeypatch.setattr(Torchvisions, "_check_integrity", lambda self: True)
    root = folders["celeba"].parent / "celeba"
    folders["celeba"].rename(root)
    folders["celeba"] = root
    ours = load("celeba", root)
    for other in ("list_bbox_celeba.txt", "list_landmarks_align_celeba.txt"):  # torchvision reads them, too
        lines = (f"{path.name} 1 2 3 4" for path in sorted((root / "img_align_celeba").iterdir()))
        (root / other).write_text("\n".join([str(len(ours.y)), "x y z w", *lines]))
    for split, positions in {"train": ours.train, "valid": ours.val, "test": ours.test}.items():
        theirs = Torchvisions(str(root.parent), split=split, target_type=["attr", "identity"])
        assert theirs.attr_names[:2] == ["Wavy_Hair", "Male"]
        assert theirs.attr[:, 0].tolist() == ours.y[positions].tolist()
        assert theirs.attr[:, 1].tolist() == ours.a[positions].tolist()
        assert theirs.identity[:, 0].tolist() == ours.columns["identity"][positions].tolist()


def test_wilds_lists_say_the_same(copy_of):
    root = copy_of("celeba")
    before = load("celeba", root)
    (_, header, *lines) = (root / "list_attr_celeba.txt").read_text().splitlines()
    rows = [["image_id", *header.split()], *(line.split() for line in lines)]
    (root / "list_attr_celeba.csv").write_text("\r\n".join(map(",".join, rows)), encoding="utf-8-sig")
    splits = [line.split() for line in (root / "list_eval_partition.txt").read_text().splitlines()]
    (root / "list_eval_partition.csv").write_text("\n".join(map(",".join, [["image_id", "partition"], *splits])))
    for name in ("list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"):
        (root / name).unlink()
    after = load("celeba", root)
    assert np.array_equal(before.y, after.y)
    assert np.array_equal(before.test, after.test)
    assert not after.columns
    assert (after.class_names, after.attribute_names) == (("not Wavy_Hair", "Wavy_Hair"), ("not Male", "Male"))


def test_celeba_gsc_deals_whole_individuals(tmp_path):
    job, _ = compose_job("train", ["experiment=celeba_gsc", f"dataset.root={tmp_path}", "dataset.image_size=8"])
    CelebA(root=tmp_path, image_size=8).generate(make(job.partition).demand)
    data = load_data(job)
    dataset, identity = data.dataset, data.dataset.columns["identity"]
    assert data.partition.num_clients == 24
    owners = {}
    for client_id, positions in enumerate(data.partition.indices):
        held = set(identity[positions])
        assert len(held) == 20, "individuals"
        assert not held & owners.keys(), "of whom no other client has an image"
        owners |= dict.fromkeys(held, client_id)
    everybody = np.isin(identity, list(owners)) & np.isin(np.arange(len(identity)), dataset.train)
    assert sorted(np.flatnonzero(everybody)) == sorted(np.concatenate(data.partition.indices)), "all of their training images"
    assert not np.intersect1d(identity[data.val], list(owners)).size
    # A generated individual has two images of its own class and one of the other: 9 and 1 of each cell, as the thesis says.
    wanted = np.array([[9, 9], [1, 1]])
    assert np.array_equal(data.matrices[0].counts, 2 * wanted + wanted[::-1])


def test_what_stays_together_is_dealt_by_any_partitioner_in_the_cell_of_most_of_its_samples(folders):
    dataset = load("celeba", folders["celeba"])
    data = deal(dataset, DirichletPartitioner(num_clients=3, alpha=100.0), keep_together="identity")
    held = [set(dataset.columns["identity"][positions]) for positions in data.partition.indices]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]
    with pytest.raises(InfeasiblePartitionError, match=r"`partition\.keep_together` to be one of y, a, identity, which"):
        deal(dataset, DirichletPartitioner(num_clients=3), keep_together="writer")


def test_labels_that_celeba_has_not_are_refused_with_those_that_it_has(folders):
    with pytest.raises(ConfigError, match="'Hat' is none: choose among Wavy_Hair, Male"):
        load("celeba", folders["celeba"], target="Hat")
    with pytest.raises(ValueError, match="two labels, but both are 'Male'"):
        CelebA(root="x", target="Male")


@pytest.mark.parametrize(
    ("file", "spoil", "sentence"),
    [
        ("list_attr_celeba.txt", lambda text: text[:-2], "each once, and 2 labels, but got '000"),
        ("list_attr_celeba.txt", lambda text: text.replace(" 1\n", " 2\n", 1), "-1 or 1 in .*but got '2'"),
        ("list_attr_celeba.txt", lambda text: text.replace("000002.jpg", "000001.jpg"), "a name twice"),
        ("list_attr_celeba.txt", lambda text: text.replace("000002.jpg", "../etc.jpg"), r"but got '\.\./etc"),
        ("list_attr_celeba.txt", lambda text: "", "hardly any lines"),
        ("list_eval_partition.txt", lambda text: text.replace(" 2\n", " 3\n", 1), "whole numbers in .*but got '3'"),
        ("list_eval_partition.txt", lambda text: text.partition("\n")[2], "it has others or faulty lines"),
        ("identity_CelebA.txt", lambda text: text.replace(" 7\n", " seven\n", 1), "whole numbers in .*but got 'seven'"),
    ],
)
def test_lists_of_celeba_that_are_damaged_are_refused(file, spoil, sentence, copy_of):
    root = copy_of("celeba")
    (root / file).write_text(spoil((root / file).read_text()))
    with pytest.raises(DatasetCorruptError, match=sentence):
        load("celeba", root)


def test_images_of_celeba_that_are_missing_are_counted(copy_of):
    root = copy_of("celeba")
    for number in (3, 5):
        (root / "img_align_celeba" / f"{number:06d}.jpg").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"but 2 are missing, the first of them 000003\.jpg"):
        load("celeba", root)


# UTKFace


def test_names_of_utkface_that_lack_a_field_are_skipped_and_counted(copy_of, caplog):
    root = copy_of("utkface")
    before = load("utkface", root)
    some = next(root.glob("*.jpg"))
    for name in ("39_1_20170116174525125.jpg.chip.jpg", "200_1_0_1.jpg", "a_1_0_1.jpg"):
        shutil.copy(some, root / name)
    shutil.copy(some, root / "116_1_0_1.jpg")
    after = load("utkface", root)
    assert len(after.y) == len(before.y) + 1
    assert "3 of " in caplog.text
    assert caplog.text.count("39_1_2017") + caplog.text.count("200_1_0_1") == 1, "the first in order"
    assert after.columns["age"].max() == 116
    assert set(after.columns["race"][after.a == 0]) == {0}


def test_a_fifth_of_each_group_of_utkface_tests(folders):
    dataset = load("utkface", folders["utkface"])
    tests, all_ = (np.bincount((2 * dataset.y + dataset.a)[at], minlength=4) for at in (dataset.test, slice(None)))
    assert tests.tolist() == np.round(0.2 * all_).astype(int).tolist()


def test_a_folder_without_faces_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(DatasetCorruptError, match=r"\[\[0, 0\], \[0, 0\]\]: unpack UTKFace"):
        load("utkface", tmp_path)


# FairFace


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda text: text.replace("Female", "Frau", 1), "`gender` to be one of 'Male', 'Female' in every line"),
        (lambda text: text.replace("train/2.jpg", "../2.jpg"), r"train/1\.jpg, each once, but got '\.\./2\.jpg'"),
        (lambda text: text.replace("train/2.jpg", "train/1.jpg"), r"each once, but got 'train/1\.jpg'"),
        (lambda text: text.replace("race", "ethnicity"), "Expected a column `race`"),
        (lambda text: text[:-6], "5 entries|`race`|race"),
    ],
)
def test_tables_of_fairface_that_are_damaged_are_refused(spoil, sentence, copy_of):
    root = copy_of("fairface")
    table = root / "fairface_label_train.csv"
    lines = spoil(table.read_text())
    table.write_text(lines if not lines.endswith("Tru") else lines.rpartition(",")[0])
    with pytest.raises(DatasetCorruptError, match=sentence):
        load("fairface", root)


def test_a_quoted_table_with_a_mark_and_other_line_ends_is_read(copy_of):
    root = copy_of("fairface")
    before = load("fairface", root)
    table = root / "fairface_label_train.csv"
    rows = [",".join(f'"{entry}"' for entry in line.split(",")) for line in table.read_text().splitlines()]
    table.write_text("\r\n".join(rows), encoding="utf-8-sig")
    assert np.array_equal(load("fairface", root).y, before.y)


def test_fairface_tests_on_its_validation_table(folders):
    dataset = load("fairface", folders["fairface"])
    assert dataset.inputs.paths[dataset.test[0]].parent.name == "val"
    assert dataset.val is None
    assert set(dataset.columns["race"]) == set(range(7))

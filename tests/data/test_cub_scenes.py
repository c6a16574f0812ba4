"""Birds on scenes: on generated files, and on the photographs where they are at hand."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from fedfacet.data.cub_scenes import BIRDS, SCENES, CubScenes
from fedfacet.data.cutouts import blended, cut_out, subject_of
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, InfeasiblePartitionError

DEMAND = np.array([[30, 6], [6, 30]])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cub")
    CubScenes(root=str(root), image_size=32).generate(None)
    return root


def counts(dataset, part):
    return np.bincount(dataset.y[part] * 2 + dataset.a[part], minlength=4).reshape(2, 2).tolist()


def test_groups_are_as_demanded_and_parts_share_neither_photographs_nor_scenes(root):
    dataset = CubScenes(root=str(root), image_size=32).load(DEMAND)
    assert counts(dataset, dataset.train) == DEMAND.tolist()
    assert counts(dataset, dataset.val) == [[4, 4], [4, 4]]  # two of ten photographs of each of four species
    assert counts(dataset, dataset.test) == [[6, 6], [6, 6]]
    parts = (dataset.train, dataset.val, dataset.test)
    seen = [{number for number, birds in enumerate(dataset.inputs._birds[part]) for number in [birds]} for part in parts]
    scenes = [set(dataset.inputs._scenes[part]) for part in parts]
    for groups in (seen, scenes):
        assert not groups[0] & groups[1]
        assert not groups[2] & (groups[0] | groups[1])
    photographs = np.bincount(dataset.columns["photograph"][dataset.train])
    assert photographs[photographs > 0].max() <= 36 // 10 + 2  # in turn: each of ten comes as often as the others, by one
    assert (dataset.columns["species"] % 2 == dataset.y).all()
    assert set(dataset.columns["scene"][dataset.a == 1]) == {1}


def test_draws_are_keyed(root):
    first, again = (CubScenes(root=str(root), image_size=32).load(DEMAND) for _ in range(2))
    other = CubScenes(root=str(root), image_size=32, seed=1).load(DEMAND)
    assert torch.equal(first.batch(first.train[:5]).x, again.batch(again.train[:5]).x)
    assert not np.array_equal(first.columns["photograph"], other.columns["photograph"])


def test_the_subject_is_found_by_colour_and_set_on_the_background():
    image = Image.new("RGB", (200, 100), (40, 90, 200))
    ImageDraw.Draw(image).ellipse((80, 30, 120, 70), fill=(150, 60, 20))
    mask = subject_of(image)
    assert mask.shape == (36, 72)
    y, x = np.mgrid[0:36, 0:72]
    disc = (x - 36) ** 2 + (y - 18) ** 2 <= 6**2
    assert mask[disc].all()
    assert mask.sum() < 2.5 * disc.sum()  # grown by a pixel or two
    pixels, opacity = cut_out(image, 50)
    background = np.full((50, 50, 3), (10, 200, 10), dtype=np.uint8)
    mixed = blended(pixels, opacity, background)
    assert np.abs(mixed[25, 25].astype(int) - (150, 60, 20)).max() <= 2
    assert (mixed[0, 0] == (10, 200, 10)).all()
    assert (opacity[25] > 128).sum() == pytest.approx(40, abs=3)  # four fifths of the side


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"land": ["../sea"]}, ConfigError, "CIFAR-100 has no class '../sea': name others"),
        ({"land": ["sea"]}, ConfigError, "name one or more classes of CIFAR-100 in each, none twice"),
        ({"val_fraction": 0.7}, ValueError, "leaves no photographs to train on: lower one of them"),
        ({"image_size": 4}, ValueError, "`dataset.image_size`"),
        ({"water": ["lake"]}, DatasetNotFoundError, r"no contact sheet .*lake\.webp"),
    ],
)
def test_settings_that_do_not_fit_are_said(root, change, error, said):
    with pytest.raises(error, match=said):
        CubScenes(root=str(root), **change).load()


def test_faults_of_files_are_said(root, tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"metadata\.csv, which is not there: point FEDFACET_DATA"):
        CubScenes(root=str(tmp_path)).load()
    with pytest.raises(InfeasiblePartitionError, match="3 classes and 2 attribute values"):
        CubScenes(root=str(root)).load(np.ones((3, 2), dtype=int))
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    table = tmp_path / BIRDS / "metadata.csv"
    content = table.read_text()
    table.write_text(content.replace("001.Bird/0000.jpg", "../../0000.jpg"))
    with pytest.raises(DatasetCorruptError, match="twice or outside its folder"):
        CubScenes(root=str(tmp_path)).load()
    table.write_text(content)
    (tmp_path / SCENES / "train" / "sea.webp").write_bytes(b"no image")
    with pytest.raises(DatasetCorruptError, match="contact sheet of 32 x 32"):
        CubScenes(root=str(tmp_path)).load()


def test_the_photographs(data_dir):
    if not (data_dir / BIRDS / "metadata.csv").is_file() or not (data_dir / SCENES).is_dir():
        pytest.skip(f"no {BIRDS} and {SCENES} in {data_dir}: point FEDFACET_DATA at a folder that holds both")
    dataset = CubScenes(root=str(data_dir)).load(np.array([[176, 64], [64, 176]]))
    assert counts(dataset, dataset.train) == [[176, 64], [64, 176]]
    assert counts(dataset, dataset.val) == [[13, 13], [31, 31]]
    assert counts(dataset, dataset.test) == [[26, 26], [63, 63]]
    scenes = dataset.inputs._scenes
    assert len(set(scenes)) == len(scenes)  # no scene comes twice
    assert dataset.batch(dataset.test[:2]).x.shape == (2, 3, 96, 96)

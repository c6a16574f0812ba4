"""Tiny ImageNet on generated files of the official layout; the photographs themselves were not at hand."""

import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.data import tiny_imagenet
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.tiny_imagenet import TinyImageNet
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

FOLDER = "tiny-imagenet-200"
WNIDS = ["n02124075", "n01443537", "n03126707", "n02012849"]
"""In an order of their own, as the official list has them."""

WORDS = {
    "n00001740": "entity",
    "n01443537": "goldfish, Carassius auratus",
    "n02012849": "crane",
    "n02124075": "Egyptian cat",
    "n03126707": "crane",
}
COLOURS = {wnid: (40 + 60 * number, 200 - 40 * number, 30) for number, wnid in enumerate(WNIDS)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write ten JPEGs to train on and two to test of each of four classes, one of them in grey, as the archive has them."""
    root = tmp_path_factory.mktemp("tiny")
    folder = root / FOLDER
    annotations = []
    for wnid in WNIDS:
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (64, 64), COLOURS[wnid]).save(images / f"{wnid}_{number}.JPEG")
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(
            "".join(f"{wnid}_{n}.JPEG\t0\t0\t63\t63\n" for n in range(10))
        )
    (folder / "val" / "images").mkdir(parents=True)
    for number in range(8):
        wnid = WNIDS[(3 * number) % 4]
        Image.new("RGB", (64, 64), COLOURS[wnid]).save(folder / "val" / "images" / f"val_{number}.JPEG")
        annotations.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    Image.new("L", (64, 64), 90).save(folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    (folder / "words.txt").write_text("".join(f"{wnid}\t{words}\n" for wnid, words in WORDS.items()))
    (folder / "test" / "images").mkdir(parents=True)  # without labels, and never looked at
    (folder / "test" / "images" / "test_0.JPEG").write_bytes(b"no image")
    return root


@pytest.fixture
def copy(written, tmp_path):
    """A copy to be damaged: the folder tiny-imagenet-200."""
    return shutil.copytree(written / FOLDER, tmp_path / FOLDER)


def load(root, **settings):
    return TinyImageNet(root=root, **settings).load()


def test_the_official_layout_is_read(written):
    dataset = load(written)
    assert dataset.class_names == ("Egyptian cat", "goldfish", "crane (n03126707)", "crane (n02012849)")
    assert (dataset.num_classes, dataset.num_attributes, dataset.input_shape) == (4, 1, (3, 64, 64))
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (36, 4, 8)
    assert np.bincount(dataset.y[dataset.val]).tolist() == [1] * 4, "stratified"
    assert set(dataset.a) == {0}
    assert sorted([*dataset.train, *dataset.val, *dataset.test]) == list(range(48))
    for position in (*dataset.train, *dataset.val, *dataset.test):
        path = dataset.inputs.paths[position]
        wnid = WNIDS[dataset.y[position]]
        pixel = dataset.inputs.fetch(np.array([position]))[0, :, 32, 32].tolist()
        wanted = (90,) * 3 if path.name == f"{WNIDS[0]}_3.JPEG" else COLOURS[wnid]
        assert pixel == pytest.approx(wanted, abs=3), "its label is that of its picture"


def test_training_images_are_those_of_torchvision(written):
    """``ImageFolder`` numbers the classes of train/ by their ids; images are the same bytes, of the same class."""
    dataset, theirs = load(written), ImageFolder(str(written / FOLDER / "train"))
    ours = {str(dataset.inputs.paths[k]): WNIDS[dataset.y[k]] for k in np.concatenate([dataset.train, dataset.val])}
    assert ours == {path: theirs.classes[label] for path, label in theirs.samples}
    position = int(dataset.train[7])
    image, _ = theirs[[path for path, _ in theirs.samples].index(str(dataset.inputs.paths[position]))]
    assert np.array_equal(dataset.inputs.fetch(np.array([position]))[0].permute(1, 2, 0).numpy(), np.asarray(image))


def test_the_official_validation_images_test(written):
    dataset = load(written)
    assert [dataset.inputs.paths[k].name for k in dataset.test] == [f"val_{number}.JPEG" for number in range(8)]
    assert [WNIDS[label] for label in dataset.y[dataset.test]] == [WNIDS[(3 * number) % 4] for number in range(8)]
    assert not [path for path in dataset.inputs.paths if "test" in path.parts], "the test images have no labels"


def test_the_split_hangs_on_the_seed_alone(written):
    splits = [load(written, seed=seed, val_fraction=0.3).val.tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_only_training_is_augmented(written):
    dataset = load(written)
    assert dataset.augmentation == CropAndFlip(padding=4)
    assert torch.equal(dataset.batch(dataset.val).x, dataset.batch(dataset.val).x)
    assert load(written, augment=False).augmentation is None


def test_images_may_be_resized(written):
    assert load(written, image_size=32).input_shape == (3, 32, 32)


def test_class_names_are_not_needed(copy):
    (copy / "words.txt").write_text("n01443537\tgoldfish\n")
    assert load(copy.parent).class_names == ("n02124075", "goldfish", "n03126707", "n02012849")


@pytest.mark.parametrize("val_fraction", [0.0, 1.0, float("nan")])
def test_impossible_settings_are_refused(val_fraction):
    with pytest.raises(ValueError, match=r"`dataset\.val_fraction` in"):
        TinyImageNet(root="x", val_fraction=val_fraction)
    with pytest.raises(ValueError, match=r"`dataset\.image_size` to be 1 or larger"):
        TinyImageNet(root="x", image_size=0)


def test_a_missing_folder_is_named_with_a_remedy(tmp_path):
    said = rf"Tiny ImageNet in {tmp_path}/tiny-imagenet-200, .*248 MB.*dataset\.download=true.*FEDFACET_DATA.*download\.$"
    with pytest.raises(DatasetNotFoundError, match=said):
        load(tmp_path)


ANNOTATIONS = "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("file", "spoil", "sentence"),
    [
        ("wnids.txt", lambda text: "", "each once and two at least, but got fewer"),
        ("wnids.txt", lambda text: text.replace("n01443537", "../secret"), r"but got '\.\./secret'"),
        ("wnids.txt", lambda text: text.replace("n01443537", "n02124075"), "each once and two at least, but got 'n02124075'"),
        ("wnids.txt", lambda text: text[:-10], "of the 3 classes of wnids.txt, but n02012849 is none of them"),
        ("wnids.txt", lambda text: text + "\nn09999999", "of the 5 classes of wnids.txt, but n09999999 has no folder"),
        (
            ANNOTATIONS,
            lambda text: text[:-15],
            r"in every line of .*val_annotations\.txt, with a tab between them, but got 'val_7",
        ),
        (ANNOTATIONS, lambda text: text.replace("\t", " "), "with a tab between them"),
        (ANNOTATIONS, lambda text: text.replace("n01443537", "n09999999"), "one of the 4 classes .*'val_3.JPEG n0999"),
        (ANNOTATIONS, lambda text: text.replace("val_2.JPEG", "val_1.JPEG"), "name each of 8 images once"),
        (ANNOTATIONS, lambda text: text.partition("\n")[2], "name each of 8 images once, .* 7 lines of 4 classes"),
        (ANNOTATIONS, lambda text: text.replace("n01443537", "n02124075"), "of 3 classes"),
    ],
)
def test_lists_that_are_damaged_are_refused(file, spoil, sentence, copy):
    (copy / file).write_text(spoil((copy / file).read_text()))
    with pytest.raises(DatasetCorruptError, match=sentence) as caught:
        load(copy.parent)
    assert "restore it from https://cs231n.stanford.edu/tiny-imagenet-200.zip" in str(caught.value)


@pytest.mark.parametrize("file", ["wnids.txt", "words.txt", ANNOTATIONS])
def test_lists_that_are_missing_or_no_text_are_named(file, copy):
    (copy / file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetCorruptError, match=rf"{file} to be a text, but it cannot be read \(UnicodeDecodeError"):
        load(copy.parent)
    (copy / file).unlink()
    with pytest.raises(DatasetNotFoundError, match=rf"Tiny ImageNet's {file.rpartition('/')[2]} in .*but got none"):
        load(copy.parent)


def test_images_that_are_missing_are_counted(copy):
    for number in (2, 5):
        (copy / "val" / "images" / f"val_{number}.JPEG").unlink()
    with pytest.raises(
        DatasetNotFoundError, match=r"Expected the 8 images .*but 2 are missing, the first of them 'val_2\.JPEG'"
    ):
        load(copy.parent)
    shutil.rmtree(copy / "train" / WNIDS[2] / "images")
    with pytest.raises(DatasetNotFoundError, match=rf"images of Tiny ImageNet in .*{WNIDS[2]}/images, but got none"):
        load(copy.parent)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "folder"])
@pytest.mark.parametrize("where", [f"train/{WNIDS[1]}/images/{WNIDS[1]}_4.JPEG", "val/images/val_6.JPEG"])
def test_an_image_that_is_damaged_is_named_before_the_first_round(where, damage, copy):
    file = copy / where
    content = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"<html>"}[damage])
    with pytest.raises(DatasetCorruptError, match=rf"{file} to be an image, .*restore the file from tiny-imagenet-200\.zip"):
        load(copy.parent)


def test_the_archive_is_fetched_unpacked_and_held_to_its_digest(written, tmp_path, monkeypatch):
    archive = tmp_path / "server" / f"{FOLDER}.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted((written / FOLDER).rglob("*")):
            opened.write(path, path.relative_to(written))
    root = tmp_path / "root"
    dataset = load(root, download=True, url=archive.as_uri())
    assert dataset.y.tolist() == load(written).y.tolist()
    assert (root / f"{FOLDER}.zip.sha256").is_file()
    monkeypatch.setattr(tiny_imagenet, "URL", archive.as_uri())
    with pytest.raises(DatasetCorruptError, match="published md5 90528d7ca1a48142e341f4ef8d21d0de, but got"):
        load(tmp_path / "other", download=True, url=archive.as_uri())
    assert not (tmp_path / "other" / FOLDER).exists()


def test_a_federation_trains_on_it(tmp_path, written):
    options = (
        "dataset=tiny_imagenet",
        f"dataset.root={written}",
        "dataset.image_size=16",
        "partition=dirichlet",
        "callbacks=evaluate",
    )
    few = ("partition.num_clients=4", "method=uniform", "federation.cohort_size=2", "federation.rounds=1", "logger=[]")
    config, _ = compose_job("train", ["~experiment", *options, *few, "local.amount=1", "model.width=2", "model.hidden=4"])
    metrics = build(config, tmp_path).run_round().metrics
    assert 0 <= metrics["test/acc"] <= 1

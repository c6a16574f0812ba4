"""WaterBirds: the real table where it is at hand, generated files of its layout, and real photographs put into it."""

import csv
import re
import shutil
import tarfile

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from torchvision import transforms

from fedfacet.data.federated import partition_and_hold_out
from fedfacet.data.waterbirds import ARCHIVE, FOLDER, URL, WaterBirds, read_metadata
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError, InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrix, measure_federation
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner

SIZE = 28  # resized to 32
HEADER = ["img_id", "img_filename", "y", "split", "place", "place_filename"]


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("waterbirds")
    WaterBirds(root, image_size=SIZE).generate(np.zeros((2, 2)))
    return root


@pytest.fixture
def root(generated, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(generated, tmp_path / "copy")


@pytest.fixture(scope="session")
def real_table(data_dir):
    path = data_dir / "waterbirds" / FOLDER / "metadata.csv"
    if not path.is_file():
        pytest.skip(f"no WaterBirds table at {path}: put the archive's metadata.csv there")
    return path


@pytest.fixture(scope="session")
def real(real_table, tmp_path_factory):
    """WaterBirds as its real table has it, loaded with its counts verified; one small picture stands in for every image."""
    root = tmp_path_factory.mktemp("real")
    shutil.copytree(real_table.parent, root / FOLDER)
    picture = root / "bird.jpg"
    Image.new("RGB", (12, 8), (90, 120, 60)).save(picture)
    for name in read_metadata(real_table)[0]:
        path = root / FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(picture)
    return WaterBirds(root).load()


@pytest.fixture
def waterbirds_dist(checkout):
    settings = OmegaConf.to_object(OmegaConf.load(checkout / "conf" / "partition" / "waterbirds_dist.yaml"))
    del settings["_target_"]
    return InteractionMatrixPartitioner(**settings)


def load(root, **changed):
    return WaterBirds(root, **{"image_size": SIZE, "verify_counts": False} | changed).load()


def counts(dataset, indices):
    return InteractionMatrix.from_labels(dataset.y[indices], dataset.a[indices], 2, 2).counts.astype(int).tolist()


def edit(root, change):
    """Rewrite the table; ``change`` maps its lines (without the header) to other ones."""
    path = root / FOLDER / "metadata.csv"
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *change(rows)])


# The real table


def test_the_official_splits_have_the_published_counts(real):
    """Sagawa et al., and fidelity notes 1.1: backgrounds are balanced within a class of the test set, classes are not."""
    assert counts(real, real.train) == [[3498, 184], [56, 1057]]
    assert counts(real, real.val) == [[467, 466], [133, 133]]
    assert counts(real, real.test) == [[2255, 2255], [642, 642]]
    everything = np.sort(np.concatenate([real.train, real.val, real.test]))
    assert np.array_equal(everything, np.arange(11_788))
    assert real.class_names == ("landbird", "waterbird")
    assert real.attribute_names == ("land", "water")


def test_the_papers_federation_takes_every_training_sample(real, waterbirds_dist, paper):
    """All 30 matrices are feasible, exact and disjoint, and nothing of the training set is left."""
    partition, val = partition_and_hold_out(real, waterbirds_dist)
    expected = [(matrix, triplet) for count, matrix, triplet in paper["waterbirds_dist"]["clients"] for _ in range(count)]
    assert partition.num_clients == len(expected) == 30
    assert [counts(real, client) for client in partition.indices] == [matrix for matrix, _ in expected]
    assert np.array_equal(np.sort(np.concatenate(partition.indices)), real.train)
    measured = measure_federation([InteractionMatrix(counts(real, client)) for client in partition.indices])
    for client, (_, triplet) in zip(measured.clients, expected, strict=True):
        assert client == pytest.approx(triplet, abs=0.005 + 1e-12)
    assert measured.global_triplet == pytest.approx(paper["waterbirds_dist"]["pooled_triplet"], abs=0.005 + 1e-12)
    assert np.array_equal(val, real.val), "the official validation set, all 1,199 of it"


def test_another_federation_does_not_fit(real, checkout):
    settings = OmegaConf.to_object(OmegaConf.load(checkout / "conf" / "partition" / "gsc.yaml"))
    del settings["_target_"]
    with pytest.raises(InfeasiblePartitionError, match=r"640 samples in the cell class 0, attribute 1, .* has 184"):
        partition_and_hold_out(real, InteractionMatrixPartitioner(**settings))


def test_the_table_alone_is_refused_with_the_first_missing_image_and_where_to_get_it(real_table, tmp_path):
    shutil.copytree(real_table.parent, tmp_path / FOLDER)
    with pytest.raises(DatasetNotFoundError) as caught:
        WaterBirds(tmp_path).load()
    message = str(caught.value)
    first = tmp_path / FOLDER / "001.Black_footed_Albatross" / "Black_Footed_Albatross_0046_18.jpg"
    for part in ("11788 are missing", str(first), URL, str(tmp_path), "dataset.root=DIR dataset.download=true"):
        assert part in message
    assert message.count("\n") == 0


# The look-alike


def table_with(counts_of_splits):
    """Lines of a table with these counts per split, class and place."""
    groups = np.repeat(np.arange(12), np.ravel(counts_of_splits))
    split, y, place = np.unravel_index(groups, (3, 2, 2))
    return [
        [str(i + 1), f"x/{i}.jpg", str(label), str(part), str(background), "/p.jpg"]
        for i, (part, label, background) in enumerate(zip(split, y, place, strict=True))
    ]


OFFICIAL = [[[3498, 184], [56, 1057]], [[467, 466], [133, 133]], [[2255, 2255], [642, 642]]]
MADE_ANEW = [[[3525, 186], [54, 1030]], [[452, 452], [147, 148]], [[2255, 2255], [642, 642]]]


def test_the_table_made_anew_is_refused_by_its_counts(root):
    edit(root, lambda _: table_with(MADE_ANEW))
    with pytest.raises(DatasetCorruptError) as caught:
        load(root, verify_counts=True)
    for part in ("[[3498, 184], [56, 1057]]", "[[3525, 186], [54, 1030]]", "made anew", URL, "dataset.verify_counts=false"):
        assert part in str(caught.value)


def test_one_sample_in_another_split_is_enough_to_be_refused(root):
    moved = np.array(OFFICIAL)
    moved[0, 1, 0] -= 1
    moved[1, 1, 0] += 1
    edit(root, lambda _: table_with(moved))
    with pytest.raises(DatasetCorruptError, match="Expected the published WaterBirds") as caught:
        load(root, verify_counts=True)
    assert "made anew" not in str(caught.value)
    edit(root, lambda _: table_with(OFFICIAL))
    with pytest.raises(DatasetNotFoundError, match="images"):
        load(root, verify_counts=True)


# The layout


def test_labels_splits_and_images_follow_the_table(generated):
    dataset = load(generated)
    assert counts(dataset, dataset.train) == [[5, 5], [5, 5]]
    assert counts(dataset, dataset.val) == counts(dataset, dataset.test) == [[10, 10], [10, 10]]
    with (generated / FOLDER / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == HEADER
    for position, row in enumerate(rows):
        assert dataset.inputs.paths[position] == generated / FOLDER / row["img_filename"]
        assert (dataset.y[position], dataset.a[position]) == (int(row["y"]), int(row["place"]))
        assert position in (dataset.train, dataset.val, dataset.test)[int(row["split"])]


def test_columns_may_come_in_any_order_with_others_between(root, generated):
    path = root / FOLDER / "metadata.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["split", "more", "place", "y", "img_filename"], extrasaction="ignore", restval="-")
        writer.writeheader()
        writer.writerows(rows)
    one, other = load(root), load(generated)
    assert np.array_equal(one.y, other.y)
    assert np.array_equal(one.a, other.a)
    assert np.array_equal(one.test, other.test)


def test_images_are_resized_to_256_and_cut_to_224_as_in_the_authors_code(tmp_path):
    """torchvision's own transforms are the oracle, on a picture of the real proportions."""
    WaterBirds(tmp_path, image_size=40).generate(None)
    dataset = WaterBirds(tmp_path, verify_counts=False).load()
    pixels = np.random.default_rng(0).integers(0, 256, (335, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((500, 335)).save(dataset.inputs.paths[3], quality=95)
    oracle = transforms.Compose([transforms.Resize((256, 256)), transforms.CenterCrop(224)])
    with Image.open(dataset.inputs.paths[3]) as file:
        expected = torch.from_numpy(np.array(oracle(file.convert("RGB")))).permute(2, 0, 1)
    assert torch.equal(dataset.inputs.fetch(np.array([3]))[0], expected)
    batch = dataset.batch(np.array([3])).x[0]
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    torch.testing.assert_close(batch, normalise(expected / 255), rtol=1e-4, atol=1e-5)


def test_real_photographs_in_the_real_layout(data_dir, tmp_path):
    """The CUB-200 (2010) photographs with invented backgrounds: every one comes out as torchvision's transforms make it."""
    photos = data_dir / "cub200_2010_subset"
    if not photos.is_dir():
        pytest.skip(f"no photographs in {photos}: put cub200_2010_subset there")
    with (photos / "metadata.csv").open(newline="") as file:
        birds = list(csv.DictReader(file))
    folder = tmp_path / FOLDER
    shutil.copytree(photos / "images", folder)
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for i, bird in enumerate(birds):
            writer.writerow([bird["img_id"], bird["img_filename"], bird["y"], i % 4 % 3, i // 4 % 2, "/p.jpg"])
    dataset = WaterBirds(tmp_path, verify_counts=False).load()
    assert (len(dataset.y), dataset.y.sum()) == (294, 206)
    oracle = transforms.Compose([transforms.Resize((256, 256)), transforms.CenterCrop(224)])
    some = np.arange(0, 294, 21)
    for position, image in zip(some, dataset.inputs.fetch(some), strict=True):
        with Image.open(photos / "images" / birds[position]["img_filename"]) as file:
            expected = np.array(oracle(file.convert("RGB")))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


# What is wrong


def test_missing_data_says_where_and_what_to_do(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        WaterBirds(tmp_path / "data").load()
    command = "`python src/train.py experiment=waterbirds dataset.download=true`"
    for part in (str(tmp_path / "data" / FOLDER), URL, "half a gigabyte", command, "experiment=digits_gsc"):
        assert part in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_one_missing_image_is_named(root):
    path = sorted((root / FOLDER / "waterbird").iterdir())[3]
    path.unlink()
    with pytest.raises(DatasetNotFoundError, match=f"but 1 are missing, the first of them {re.escape(str(path))}: unpack"):
        load(root)


def test_a_truncated_image_is_named_before_any_training(root):
    path = sorted((root / FOLDER / "landbird").iterdir())[2]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DatasetCorruptError, match=f"{re.escape(str(path))} .*dataset.download=true"):
        load(root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], "to be a table, but it has no rows"),
        (lambda rows: [*rows, rows[0]], "each once"),
        (lambda rows: [[row[0], "", *row[2:]] for row in rows], "to name an image in every line"),
        (
            lambda rows: [*rows[:3], [*rows[3][:2], "2", *rows[3][3:]], *rows[4:]],
            "`y` to be one of '0', '1' .* '2' in line 5",
        ),
        (
            lambda rows: [[*rows[0][:3], "3", *rows[0][4:]], *rows[1:]],
            "`split` to be one of '0', '1', '2' .* '3' in line 2",
        ),
        (lambda rows: [*rows[:-1], rows[-1][:3]], "Expected 6 entries .* got 3"),
        (lambda rows: [[*rows[0][:4], "land", ""], *rows[1:]], "`place` to be one of '0', '1' .* got 'land'"),
    ],
)
def test_a_damaged_table_is_named(root, change, message):
    edit(root, change)
    with pytest.raises(DatasetCorruptError, match=message) as caught:
        load(root)
    assert str(root / FOLDER / "metadata.csv") in str(caught.value)
    assert URL in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b"<!doctype html>\n<p>", b"y,place\n0,1\n"])
def test_something_that_is_no_table_is_refused(root, content):
    path = root / FOLDER / "metadata.csv"
    path.write_bytes(content)
    with pytest.raises(DatasetCorruptError, match=re.escape(str(path))):
        load(root)


def test_impossible_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`dataset\.image_size` to be 1 or larger, but got 0"):
        WaterBirds(tmp_path, image_size=0)


# The download


@pytest.fixture
def served(generated, serve, tmp_path):
    """The address of a local server with an archive as the real one is laid out."""
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / ARCHIVE, "w:gz") as tar:
        tar.add(generated / FOLDER, FOLDER)
    return f"{serve(folder)}/{ARCHIVE}"


def test_download(served, generated, tmp_path):
    dataset = load(tmp_path / "data", download=True, url=served)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [FOLDER, ARCHIVE, f"{ARCHIVE}.sha256"]
    reference = load(generated)
    everything = np.arange(len(reference.y))
    assert torch.equal(dataset.inputs.fetch(everything), reference.inputs.fetch(everything))
    assert np.array_equal(dataset.val, reference.val)
    (tmp_path / "data" / ARCHIVE).unlink()
    load(tmp_path / "data", download=True, url=served)  # what is unpacked is not fetched again


def test_another_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("something"))
    with pytest.raises(DatasetCorruptError, match=f"to unpack to .*{FOLDER}"):
        load(tmp_path / "data", download=True, url=(tmp_path / "other.tar.gz").as_uri())


def test_generated_files_meet_the_demand(tmp_path, waterbirds_dist):
    source = WaterBirds(tmp_path, image_size=8, verify_counts=False)
    demand = np.array([[30, 1], [2, 12]])
    source.generate(demand)
    dataset = source.load(demand)
    assert (np.array(counts(dataset, dataset.train)) > demand).all()
    assert min(np.ravel(counts(dataset, dataset.val)), default=0) > 0

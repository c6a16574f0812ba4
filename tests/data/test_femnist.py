"""FEMNIST in LEAF's layout, on generated files."""

import json
import shutil

import numpy as np
import pytest

from fedfacet.data.femnist import CHARACTERS, FEMNIST
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("femnist")
    FEMNIST(root=str(root)).generate(None)
    return root


@pytest.fixture(scope="module")
def small(generated, tmp_path_factory):
    """The files cut to three samples of each writer, which are read and written in no time."""
    root = tmp_path_factory.mktemp("small")
    for part in ("train", "test"):
        content = json.loads((generated / "data" / part / "all_data_0.json").read_text())
        for samples in content["user_data"].values():
            samples.update(x=samples["x"][:3], y=samples["y"][:3])
        content["num_samples"] = [3] * len(content["users"])
        (root / "data" / part).mkdir(parents=True)
        (root / "data" / part / "all_data_0.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def rewritten(small, tmp_path):
    """Return a function: change of a file's content -> the data set, changed."""

    def rewrite(change, part="train"):
        shutil.copytree(small, tmp_path, dirs_exist_ok=True)
        file = tmp_path / "data" / part / "all_data_0.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
        return FEMNIST(root=str(tmp_path))

    return rewrite


def test_what_the_files_hold(generated):
    dataset = FEMNIST(root=str(generated)).load()
    assert dataset.num_classes == len(CHARACTERS) == 62
    assert (len(dataset.train), len(dataset.test)) == (12 * 124, 2 * 124)
    writer = dataset.columns["writer"]
    assert np.bincount(writer).tolist() == [124] * 14
    assert not set(writer[dataset.train]) & set(writer[dataset.test])
    content = json.loads((generated / "data" / "train" / "all_data_0.json").read_text())
    third = content["user_data"]["train_03"]
    own = dataset.train[writer[dataset.train] == 3]
    assert dataset.y[own].tolist() == third["y"]
    pixels = dataset.inputs.fetch(own).numpy().reshape(len(own), -1) / 255
    np.testing.assert_allclose(pixels, third["x"], atol=0.5 / 255)


def test_writers_may_lie_in_several_files_and_be_in_both_parts(small, tmp_path):
    """LEAF writes a file for every so many writers, and with ``-t sample`` every writer trains and tests."""
    content = json.loads((small / "data" / "train" / "all_data_0.json").read_text())
    users = content["users"]
    for part, chosen in (("train/a", users[:5]), ("train/b", users[5:]), ("test/a", users[:2])):
        file = tmp_path / "data" / f"{part}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"users": chosen, "user_data": {name: content["user_data"][name] for name in chosen}}))
    dataset = FEMNIST(root=str(tmp_path)).load()
    whole = FEMNIST(root=str(small)).load()
    assert np.array_equal(dataset.y[dataset.train], whole.y[whole.train])
    assert set(dataset.columns["writer"][dataset.test]) == {0, 1}


def test_missing_files_are_named_with_how_to_make_them(tmp_path):
    with pytest.raises(
        DatasetNotFoundError, match=r"LEAF's json files in .*train.*preprocess\.sh.*-t user.*experiment=mnist_writers"
    ):
        FEMNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content["user_data"].pop("train_04"), "do not name the same writers"),
        (lambda content: content["users"].append("train_04"), "each once"),
        (lambda content: content.pop("users"), "KeyError"),
        (lambda content: content["user_data"]["train_04"]["x"].pop(), "a writer have the shape"),
        (lambda content: content["user_data"]["train_04"]["x"][0].pop(), "cannot be read"),
        (lambda content: content["user_data"]["train_04"]["x"][0].__setitem__(0, 7.5), "not a number between 0 and 1"),
        (lambda content: content["user_data"]["train_04"]["x"][0].__setitem__(0, float("nan")), "not a number between 0 and 1"),
        (lambda content: content["user_data"]["train_04"]["x"][0].__setitem__(0, "0.5"), "not a number between 0 and 1"),
        (lambda content: content["num_samples"].__setitem__(4, 7), "`num_samples` are not"),
        (lambda content: content["user_data"]["train_04"]["y"].__setitem__(0, 62), "from 0 to 61"),
        (lambda content: content["user_data"]["train_04"]["y"].__setitem__(0, 0.5), "not a whole number"),
        (lambda content: content["user_data"].__setitem__("train_04", {"x": [], "y": []}), "the shape"),
    ],
)
def test_files_of_another_make_are_refused(rewritten, change, sentence):
    with pytest.raises(DatasetCorruptError, match=rf"all_data_0\.json to be a file as LEAF writes it.*{sentence}"):
        rewritten(change).load()


def test_a_truncated_file_and_a_writer_in_two_files_are_refused(small, tmp_path):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "data" / "train" / "all_data_0.json"
    shutil.copy(file, file.with_name("all_data_1.json"))
    with pytest.raises(DatasetCorruptError, match=r"each writer in one file of .*but 'train_00' is in all_data_1\.json"):
        FEMNIST(root=str(tmp_path)).load()
    twice = file.read_text().replace('"train_01": {"x"', '"train_00": {"x"')
    file.with_name("all_data_1.json").unlink()
    file.write_text(twice)
    with pytest.raises(DatasetCorruptError, match="a name is there twice"):
        FEMNIST(root=str(tmp_path)).load()
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DatasetCorruptError, match="JSONDecodeError"):
        FEMNIST(root=str(tmp_path)).load()

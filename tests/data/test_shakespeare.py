"""Windows of 80 characters, on the real text where it is at hand and on generated plays."""

import gzip
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.data.federated import partition_and_hold_out
from fedfacet.data.shakespeare import ALPHABET, WINDOW, Role, Shakespeare, Windows
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError, InfeasiblePartitionError
from fedfacet.partitioners.natural import NaturalPartitioner
from fedfacet.partitioners.synthetic import ClassesPerClientPartitioner


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("shakespeare")
    Shakespeare(root=str(root), num_roles=6).generate(None)
    return root


@pytest.fixture(scope="module")
def real(data_dir):
    if not (data_dir / "shakespeare" / "t8.shakespeare.txt.gz").is_file():
        pytest.skip(f"no text in {data_dir / 'shakespeare'}: point FEDFACET_DATA at a folder that holds shakespeare/")
    return data_dir / "shakespeare"


def spelled(codes):
    return "".join(ALPHABET[code] for code in codes)


@pytest.mark.slow
def test_the_real_text_has_leafs_counts_in_90_5_and_5_percent_and_takes_no_more_memory_than_it_is(real):
    """What grows with 80 times the text would be 338 MB; measured are labels and positions, 8 bytes a window each."""
    source = Shakespeare(root=str(real))
    tracemalloc.start()
    try:
        dataset = source.load()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert dataset.inputs._text.nbytes == 4_226_206 + 80 * 1_130
    assert kept < 2.2 * 8 * 4_226_206
    assert peak < 140e6
    assert len(dataset.y) == len(dataset.inputs) == 4_226_206
    assert [len(split) for split in (dataset.train, dataset.val, dataset.test)] == [3_803_585, 211_311, 211_310]
    assert len(np.unique(dataset.columns["role"])) == 1_130
    assert len(np.unique(dataset.columns["play"])) == 36
    assert len(np.unique(dataset.columns["character"])) < 1_130
    commonest = np.bincount(dataset.y).argmax()
    assert ALPHABET[commonest] == " "
    assert np.mean(dataset.y == commonest) == pytest.approx(0.187, abs=5e-4), "what a majority-class predictor is right in"


def test_a_hundred_roles_go_to_a_hundred_clients_five_each(real):
    dataset = Shakespeare(root=str(real), num_roles=100, min_samples=500).load()
    role = dataset.columns["role"]
    assert np.bincount(role).min() >= 500
    partition, _ = partition_and_hold_out(
        dataset, ClassesPerClientPartitioner(num_clients=100, classes_per_client=5, label="role")
    )
    assert {len(np.unique(role[client])) for client in partition.indices} == {5}
    assert sum(map(len, partition.indices)) == len(dataset.train)


@st.composite
def texts(draw):
    letters = st.sampled_from("abc ,.")
    return draw(st.lists(st.text(letters, min_size=WINDOW + 1, max_size=WINDOW + 30), min_size=1, max_size=5))


@given(texts(), st.data())
def test_windows_and_what_follows_are_those_of_the_definition(said, data):
    windows = Windows([Role("play", str(number), text) for number, text in enumerate(said)])
    expected = [(text[i : i + WINDOW], text[i + WINDOW]) for text in said for i in range(len(text) - WINDOW)]
    assert len(windows) == len(expected)
    assert spelled(windows.following()) == "".join(after for _, after in expected)
    order = data.draw(st.permutations(range(len(expected))))[:20]
    fetched = windows.fetch(np.array(order))
    assert fetched.dtype == torch.uint8
    assert [spelled(row) for row in fetched] == [expected[position][0] for position in order]


def test_no_window_reaches_into_another_role(generated):
    dataset = Shakespeare(root=str(generated)).load()
    role = dataset.columns["role"]
    texts = {}
    for number in np.unique(role):
        rows = dataset.inputs.fetch(np.flatnonzero(role == number))
        texts[number] = spelled(rows[0]) + spelled(dataset.y[role == number])
        assert spelled(rows[-1]) == texts[number][-WINDOW - 1 : -1]
    assert len(set(texts.values())) == 6


def test_generated_roles_have_windows_to_validate_and_test_where_each_is_cut_at_one_place(tmp_path):
    source = Shakespeare(root=str(tmp_path), num_roles=6, split="contiguous")
    source.generate(None)
    dataset = source.load()
    for split in (dataset.train, dataset.val, dataset.test):
        assert len(np.unique(dataset.columns["role"][split])) == 6


def test_columns_name_role_character_and_play(generated):
    dataset = Shakespeare(root=str(generated)).load()
    assert list(dataset.columns) == ["role", "character", "play"]
    role, character, play = dataset.columns.values()
    assert role.tolist() == np.repeat(np.arange(6), dataset.inputs.sizes).tolist()
    assert (play == role // 3).all()
    assert len(np.unique(character)) == 6
    with pytest.raises(InfeasiblePartitionError, match="one of y, a, role, character, play"):
        partition_and_hold_out(dataset, NaturalPartitioner(label="writer"))


def test_characters_of_one_name_are_one_and_roles_are_not(generated, tmp_path):
    """The first role of the second play is given the name of the first role of the first."""
    text = (generated / "t8.shakespeare.txt").read_text()
    plays = text.split("by William Shakespeare")[2:]
    one, two = (next(line[2:].split(".")[0] for line in play.splitlines() if line[:2] == "  ") for play in plays[:2])
    (tmp_path / "t8.shakespeare.txt").write_text(text.replace(f"  {two}. ", f"  {one}. "))
    dataset = Shakespeare(root=str(tmp_path)).load()
    assert len(np.unique(dataset.columns["role"])) == 6
    assert len(np.unique(dataset.columns["character"])) == 5
    shared = np.flatnonzero(dataset.columns["character"] == dataset.columns["character"][0])
    assert len(np.unique(dataset.columns["play"][shared])) == 2


@pytest.mark.parametrize("split", ["random", "contiguous"])
def test_splits_are_disjoint_and_of_the_size_asked_for(generated, split):
    dataset = Shakespeare(root=str(generated), split=split, val_fraction=0.3, test_fraction=0.3).load()
    parts = [dataset.train, dataset.val, dataset.test]
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(set(np.concatenate(parts))) == sum(map(len, parts))
    total = len(dataset.y)
    if split == "random":
        assert [len(part) for part in parts] == pytest.approx([0.4 * total, 0.3 * total, 0.3 * total], abs=1)
    else:
        assert len(dataset.train) == pytest.approx(0.4 * total, abs=9)


def test_a_contiguous_split_tests_nothing_that_was_read_in_training(generated):
    """No character of a validation or test window, what follows included, is in a window of an earlier part."""
    dataset = Shakespeare(root=str(generated), split="contiguous", val_fraction=0.3, test_fraction=0.3).load()
    read = [
        {start + offset for start in dataset.inputs._starts(part).tolist() for offset in range(WINDOW + 1)}
        for part in (dataset.train, dataset.val, dataset.test)
    ]
    assert min(map(len, read)) > 0
    assert not read[0] & read[1]
    assert not read[0] & read[2]
    assert not read[1] & read[2]


def test_roles_and_split_hang_on_the_seed_alone(generated):
    def loaded(seed):
        dataset = Shakespeare(root=str(generated), num_roles=4, seed=seed).load()
        return dataset.inputs.sizes.tolist(), dataset.test.tolist()

    assert loaded(0) == loaded(0)
    assert len({str(loaded(seed)) for seed in range(4)}) == 4


def test_roles_with_few_windows_can_be_left_out(generated):
    sizes = Shakespeare(root=str(generated)).load().inputs.sizes
    least = int(np.sort(sizes)[4])
    dataset = Shakespeare(root=str(generated), min_samples=least).load()
    assert dataset.inputs.sizes.tolist() == [size for size in sizes if size >= least]
    partition, _ = partition_and_hold_out(dataset, NaturalPartitioner(label="role"))
    assert partition.num_clients == len(dataset.inputs.sizes)


def test_the_text_may_be_compressed_and_have_leafs_name(generated, tmp_path):
    content = (generated / "t8.shakespeare.txt").read_bytes()
    expected = Shakespeare(root=str(generated)).load().y
    for name, written in (("raw_data.txt", content), ("t8.shakespeare.txt.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        assert (Shakespeare(root=str(tmp_path)).load().y == expected).all()


def test_a_missing_text_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"1994-01-100\.zip .*personal use.*dataset\.root=DIR.*digits_gsc"):
        Shakespeare(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[: len(content) // 2] + b"\xff", "text in ASCII, but it cannot be read"),
        (lambda content: b"", "1 roles with at least 1 windows .* but it has 0"),
        (lambda content: content.replace(b",", b"#"), "80 characters that LEAF knows, but the roles also say '#'"),
    ],
)
def test_other_content_is_refused(generated, tmp_path, change, said):
    (tmp_path / "t8.shakespeare.txt").write_bytes(change((generated / "t8.shakespeare.txt").read_bytes()))
    with pytest.raises(DatasetCorruptError, match=said):
        Shakespeare(root=str(tmp_path)).load()


def test_a_truncated_archive_is_named(generated, tmp_path):
    shutil.copy(generated / "t8.shakespeare.txt", tmp_path)
    content = gzip.compress((tmp_path / "t8.shakespeare.txt").read_bytes())
    (tmp_path / "t8.shakespeare.txt.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetCorruptError, match=r"t8\.shakespeare\.txt\.gz to be the text"):
        Shakespeare(root=str(tmp_path)).load()


def test_more_roles_than_there_are_are_refused(generated):
    with pytest.raises(DatasetCorruptError, match=r"Expected 7 roles with at least 1 windows .* it has 6: lower `dataset"):
        Shakespeare(root=str(generated), num_roles=7).load()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_roles": 0}, r"dataset\.num_roles"),
        ({"min_samples": 0}, r"dataset\.min_samples"),
        ({"split": "role"}, "'random' or 'contiguous', but got 'role'"),
        ({"val_fraction": 0.0}, r"dataset\.val_fraction"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "together less than 1"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Shakespeare(root="", **settings)

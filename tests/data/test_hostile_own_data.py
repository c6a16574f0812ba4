"""Data of one's own, written in every way that people and programs write it: read right, or refused with place and entry."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.csv import Csv
from fedfacet.data.entries import is_missing, ordered, resembles_number, spelling
from fedfacet.data.hf import HuggingFace
from fedfacet.data.image_folder import ImageFolder
from fedfacet.data.npz import Npz
from fedfacet.errors import DatasetCorruptError, FedFacetError

MISSING = [
    "",
    " ",
    "NA",
    "na",
    " N/A ",
    "nan",
    "NaN",
    "NULL",
    "None",
    "?",
    "-",
    "--",
    "n.a.",
    "<NA>",
    "#N/A",
    "\\N",
    "—",
    "\xa0",
]
HEADER = ["size", "colour", "class", "attribute", "site", "split"]
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def rows_of(number=40):
    return [
        [
            str(n / 4 + 1 / 8),
            "red" if n % 3 else "blue",
            str(n % 12),
            "fm"[n // 2 % 2],
            f"h{n % 4}",
            "train" if n < number // 2 else "test",
        ]
        for n in range(number)
    ]


def write(path, rows, draw=None, separator=","):
    """Write rows; with a generator in any of the ways that make no difference."""
    lines = []
    for row in [HEADER, *rows]:
        entries = list(row)
        if draw is not None:
            place = draw.integers(len(row))
            entries[place] = draw.choice(["{} ", "  {}", '"{}"', '"{} "', ' "{}"']).format(entries[place])
        lines.append(separator.join(entries))
    text = ""
    for line in lines:
        text += line + ("\n" if draw is None else draw.choice(["\n", "\r\n", "\n\n"]))
    text = text.rstrip("\n") if draw is not None and draw.integers(2) else text
    if draw is not None and draw.integers(4) == 0:
        text = text.replace("\r\n", "\n").replace("\n", "\r")
    path.write_bytes(text.encode("utf-8-sig" if draw is not None and draw.integers(2) else "utf-8"))


def load(folder, **settings):
    return Csv(root=folder, columns=["site"], **settings).load()


def said_of(source):
    """Return the one sentence of a refusal, which a terminal shows as it is."""
    with pytest.raises(FedFacetError) as caught:
        source.load()
    sentence = str(caught.value)
    assert sentence.isprintable()
    return sentence


def line_of(path, row):
    """Return the line of a file that a row ends on, where no entry has line ends."""
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    return [number for number, line in enumerate(text.split("\n"), 1) if line][row + 1]


@pytest.mark.parametrize("seed", range(25))
def test_how_a_table_is_written_makes_no_difference(tmp_path, seed):
    draw = np.random.default_rng(seed)
    write(tmp_path / "table.csv", rows_of())
    plain = load(tmp_path)
    separator = list(SEPARATORS)[seed % 4]
    write(tmp_path / "table.csv", rows_of(), draw, SEPARATORS[separator])
    data = load(tmp_path, separator=separator)
    assert data.class_names == plain.class_names == tuple(map(str, range(12)))
    assert data.attribute_names == plain.attribute_names == ("f", "m")
    for name in ("y", "a", "train", "test"):
        assert np.array_equal(getattr(data, name), getattr(plain, name))
    assert torch.equal(data.inputs.fetch(np.arange(40)), plain.inputs.fetch(np.arange(40)))
    assert data.columns["site"].tolist() == plain.columns["site"].tolist()


@pytest.mark.parametrize("share", [1, 2, 6, 19])
@pytest.mark.parametrize("column", HEADER)
def test_words_for_missing_are_one_whatever_their_share(tmp_path, column, share, caplog):
    draw = np.random.default_rng(share)
    for word in MISSING:
        rows, place = rows_of(), HEADER.index(column)
        for row in draw.choice(40, share, replace=False):
            rows[row][place] = word
        first = next(row for row in range(40) if rows[row][place] == word)
        write(tmp_path / "table.csv", rows, draw)
        line, told = line_of(tmp_path / "table.csv", first), repr(word.strip())
        if column != "site":
            sentence = said_of(Csv(root=tmp_path, columns=["site"]))
            assert f"line {line} of " in sentence
            assert told in sentence or (column == "split" and repr(word)[1:-1].strip() in sentence)
            assert f"'{column}'" in sentence
            continue
        caplog.clear()
        data = load(tmp_path)
        assert np.count_nonzero(data.columns["site"] < 0) == share
        assert f"line {line} of " in caplog.text


def test_rows_without_a_value_are_left_out_when_that_is_asked_for(tmp_path, caplog):
    rows = rows_of(80)
    for row, (column, word) in enumerate((column, word) for column in (0, 1, 2, 3, 5) for word in ("", "NA", "?")):
        rows[row][column] = word
    rows[20][4] = "NULL"
    write(tmp_path / "table.csv", rows)
    data = load(tmp_path, missing="drop")
    write(tmp_path / "table.csv", rows[15:])
    rest = load(tmp_path)
    assert data.y.tolist() == rest.y.tolist()
    assert torch.equal(data.inputs.fetch(np.arange(65)), rest.inputs.fetch(np.arange(65)))
    assert "Of 80 rows" in caplog.text
    assert "15 lack a value" in caplog.text


NOTATIONS = [
    "1,5",
    "1 000",
    "1_000",
    "0x1f",
    "inf",
    "-Infinity",
    "1e4000",
    "\u22125",
    "\u0663",
    "\uff11",
    "12%",
    "$5",
    "2020-01-31",
]
DATES = ["2020-01-31", "31.1.2020", "2020-01-31T10:00:00Z"]
NOTATIONS += ["31.1.2020", "5 Jan 2020", "2020-01-31T10:00:00Z", "12:30", "1'000", "1.000,5", "5-", "1/2"]


@pytest.mark.parametrize("share", [1, 8, 32, 40])
def test_numbers_in_other_notations_are_never_words_or_other_numbers(tmp_path, share):
    for notation in NOTATIONS:
        rows = rows_of()
        for row in range(40 - share, 40):
            rows[row][0] = f'"{notation}"'
        write(tmp_path / "table.csv", rows)
        if share == 40 and notation in DATES:
            assert "size days;" in load(tmp_path).inputs_read
            continue
        sentence = said_of(Csv(root=tmp_path, columns=["site"]))
        if 8 <= share <= 32:
            assert "line" in sentence
        else:
            assert f"line {42 - share}" in sentence
            assert repr(notation) in sentence
        assert "`dataset.words=[size]`" in sentence
        assert load(tmp_path, words=["size"]).inputs.fetch(np.arange(1)).shape[1] == 2 + 40 - share + 1


def test_codes_that_begin_with_a_zero_are_named(tmp_path, caplog):
    write(tmp_path / "table.csv", [[f"{n % 9}", *row[1:]] for n, row in enumerate(rows_of())])
    load(tmp_path)
    assert caplog.text == ""
    write(tmp_path / "table.csv", [[f"{n % 9:05d}", *row[1:]] for n, row in enumerate(rows_of())])
    load(tmp_path)
    assert "column 'size' is read as numbers, '00000' among them; dataset.words=[size] takes words" in caplog.text
    caplog.clear()
    assert load(tmp_path, words=["size"]).inputs.fetch(np.arange(1)).shape == (1, 11)
    assert caplog.text == ""


@pytest.mark.parametrize(("column", "first", "second"), [(1, "red", "Red"), (1, "red", "red."), (3, "f", "F"), (2, "1", "01")])
def test_two_spellings_of_one_value_are_named(tmp_path, column, first, second):
    rows = rows_of()
    row = max(row for row in range(20) if rows[row][column] == first)
    rows[row][column] = second
    write(tmp_path / "table.csv", rows)
    sentence = said_of(Csv(root=tmp_path, columns=["site"]))
    assert f"line {row + 2} of " in sentence
    assert repr(first) in sentence
    assert repr(second) in sentence


@pytest.mark.parametrize("where", ["test", "val"])
def test_classes_that_nobody_trains_on_are_named(tmp_path, where, caplog):
    rows = rows_of()
    rows[30][2], rows[30][5] = "unheard", where
    write(tmp_path / "table.csv", rows)
    assert "'unheard'" in said_of(Csv(root=tmp_path, columns=["site"]))
    assert "'class' has numbers and words, '0' and 'unheard' among them" in caplog.text
    rows[30][2], rows[30][3], rows[31][1] = "1", "x", "green"
    write(tmp_path / "table.csv", rows)
    assert load(tmp_path).attribute_names == ("f", "m", "x")
    assert "attribute values of the test or validation set: 'x'" in caplog.text
    assert "trains on these words of 'colour': 'green'" in caplog.text


def test_a_column_of_numbers_is_no_class(tmp_path):
    write(tmp_path / "table.csv", [[*row[:2], str(n / 7), *row[3:]] for n, row in enumerate(rows_of())])
    assert "'class' to have a few values" in said_of(Csv(root=tmp_path, columns=["site"]))
    write(tmp_path / "table.csv", [[*row[:2], str(36 + n % 25 / 10), *row[3:]] for n, row in enumerate(rows_of(800))])
    assert "'class' to have a few values" in said_of(Csv(root=tmp_path, columns=["site"]))


def test_damaged_tables_load_or_are_refused_in_one_sentence(tmp_path):
    draw = np.random.default_rng(0)
    write(tmp_path / "table.csv", rows_of())
    content = (tmp_path / "table.csv").read_bytes()
    pieces = [
        b",",
        b"\n",
        b'"',
        b"\r",
        b"\0",
        b"\xff",
        b";",
        b"\t",
        b"NA",
        b"\xef\xbb\xbf",
        b"\xc3\xa4",
        b"\x1b[31m",
        b"1e-400",
    ]
    loaded = 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(draw.integers(1, 4)):
            place = int(draw.integers(len(damaged)))
            damaged[place : place + int(draw.integers(0, 9))] = pieces[draw.integers(len(pieces))]
        (tmp_path / "table.csv").write_bytes(damaged)
        try:
            load(tmp_path)
            loaded += 1
        except FedFacetError as refusal:
            assert str(refusal).isprintable()  # noqa: PT017
    assert 0 < loaded < 100


def test_damaged_arrays_load_or_are_refused_in_one_sentence(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    odd = [np.array("x"), np.array(3), np.zeros(0), np.array([b"a"] * 20), np.array([1.5] * 20), np.array([np.nan] * 20)]
    odd += [np.arange(20).astype("M8[D]"), np.zeros(20, dtype=[("q", "i4")]), np.zeros(20, complex), np.zeros((20, 2, 0))]
    odd += [np.array([[2**63 + 5] * 2] * 20, dtype="uint64"), np.array(["a\x1b"] * 20), np.array([1e300] * 20)]
    for name in ("x", "y", "a", "site", "class_names", "attribute_names", "x_test", "y_test"):
        for array in odd:
            np.savez(tmp_path / "arrays.npz", **({"x": x, "y": y, "a": y} | {name: array}))
            if name == "y" and (array.shape == (20, 2) or array.tolist() == [1.5] * 20):  # numbers in place of classes
                assert np.array_equal(Npz(root=tmp_path).load().targets, array.astype(np.float32))
            else:
                said_of(Npz(root=tmp_path))


def test_words_of_arrays_follow_the_same_rule(tmp_path, caplog):
    site = np.array(["10", "9", " 9", "n/a", "None", "10"])
    np.savez(tmp_path / "arrays.npz", x=np.ones((6, 2)), y=np.arange(6) % 2, site=site, class_names=["no", "yes"])
    assert Npz(root=tmp_path).load().columns["site"].tolist() == [1, 0, 0, -1, -1, 1]
    assert "2 samples belong to no client by the column 'site', the first in sample 4" in caplog.text


def test_arrays_of_classes_that_nobody_trains_on_are_refused():
    x = np.zeros((30, 2), dtype=np.float32)
    with pytest.raises(ValueError, match=r"are none of 'c', 'd'"):
        dataset_from_arrays(x, np.arange(30) % 2, class_names=list("abcd"), test=(x[:4], [0, 1, 2, 3]))
    with pytest.raises(ValueError, match="a few classes"):
        dataset_from_arrays(x, np.arange(30), test=(x[:4], np.arange(4)))
    with pytest.raises(ValueError, match="a name for each label"):
        dataset_from_arrays(x, np.arange(30) % 2, class_names="ab")
    with pytest.raises(ValueError, match="different names"):
        dataset_from_arrays(x, np.arange(30) % 2, class_names=["a", "a"])
    with pytest.raises(ValueError, match=r"x\[7\] holds NaN"):
        dataset_from_arrays(np.where(np.arange(30)[:, None] == 7, np.nan, x), np.arange(30) % 2)
    images = np.zeros((30, 1, 2, 2), np.uint8)
    for std in (float("nan"), 1e-40, float("inf")):
        with pytest.raises(ValueError, match="`std` larger than 0"):
            dataset_from_arrays(images, np.arange(30) % 2, mean=(0.5,), std=(std,))


def write_images(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)


class TestFolders:
    def test_an_empty_class_is_named(self, tmp_path):
        write_images(tmp_path / "images", [f"{pet}/{n}.png" for pet in ("cat", "dog") for n in range(3)])
        (tmp_path / "images" / "bird").mkdir()
        assert "'bird' has none" in said_of(ImageFolder(root=tmp_path, image_size=4))

    def test_what_does_not_count_is_named(self, tmp_path, caplog):
        write_images(tmp_path / "images", [f"{h}/{pet}/{n}.png" for h in "ab" for pet in ("cat", "dog") for n in range(2)])
        (tmp_path / "images" / "c" / "cat").mkdir(parents=True)
        (tmp_path / "images" / "a" / "cat" / "x.heic").touch()
        ImageFolder(root=tmp_path, folders=["hospital", "class"], image_size=4).load()
        assert re.search(r"folders without images in \S+: 2, the first of them 'c'", caplog.text)
        assert re.search(r"files that do not count.* 1, the first of them 'a/cat/x.heic'", caplog.text)
        (tmp_path / "said.csv").write_text(
            "file,class\n" + "".join(f"a/{p}/{n}.png,{p}\n" for p in ("cat", "dog") for n in (0, 1, 1))
        )
        ImageFolder(root=tmp_path, labels="said.csv", image_size=4).load()
        assert re.search(r"no line of \S+ names them in \S+ 4, the first of them 'b/cat/0.png'", caplog.text)
        assert re.search(r"images that several lines name.* 2, the first", caplog.text)

    @pytest.mark.parametrize("word", ["NA", "none", "N.A.", "?"])
    def test_a_word_for_missing_is_no_folder(self, tmp_path, word):
        write_images(tmp_path / "images", [f"{pet}/{n}.png" for pet in ("cat", word) for n in range(3)])
        assert f"{word}/0.png' has '{word}'" in said_of(ImageFolder(root=tmp_path, image_size=4))

    def test_names_from_outside_are_shown_and_not_obeyed(self, tmp_path):
        write_images(tmp_path / "images", ["cat/a\x1b[31m.png", "cat/b.png"])
        assert r"a\x1b[31m.png" in said_of(ImageFolder(root=tmp_path, folders=["class", "place"]))
        (tmp_path / "images" / "cat" / "a\x1b[31m.png").write_bytes(b"none")
        assert r"a\x1b[31m.png" in said_of(ImageFolder(root=tmp_path))
        write_images(tmp_path / "images", ["d\x1b[31mog/a.png", "d\x1b[31mog/b.png"])
        assert r"d\x1b[31mog" in said_of(ImageFolder(root=tmp_path))


class TestHuggingFace:
    @pytest.fixture
    def written(self, tmp_path):
        datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")

        def written(label, features=None, **splits):
            part = datasets.Dataset.from_dict({"x": [[float(n)] for n in range(len(label))], "label": label}, features)
            parts = {name: part.select(range(*bounds)) for name, bounds in splits.items()}
            (datasets.DatasetDict(parts) if parts else part).save_to_disk(str(tmp_path / "dataset"))
            return HuggingFace(root=tmp_path, input="x")

        written.datasets = datasets
        return written

    def test_numbers_are_numbered_by_size(self, written):
        data = written([float(n % 12) for n in range(80)]).load()
        assert data.class_names == tuple(f"{n}.0" for n in range(12))
        assert data.y.tolist() == [n % 12 for n in range(80)]

    @pytest.mark.parametrize("word", [None, float("nan"), "NA", " none"])
    def test_missing_labels_are_refused(self, written, word):
        other = 1.0 if isinstance(word, float) else "b"
        assert "row 4 of " in said_of(written([word if n == 3 else other for n in range(20)]))

    def test_declared_names_are_taken_as_they_are(self, written):
        kinds = written.datasets.Features(
            x=written.datasets.Sequence(written.datasets.Value("float32")),
            label=written.datasets.ClassLabel(names=["none", "a", "A"]),
        )
        assert written([n % 3 for n in range(20)], kinds).load().class_names == ("none", "a", "A")

    def test_splits_that_do_not_count_are_named(self, written, caplog):
        source = written([n % 2 + (n > 30) for n in range(40)], train=(0, 20), test=(20, 30), dev=(30, 40))
        assert source.load().class_names == ("0", "1")
        assert "do not count: 'dev'" in caplog.text

    def test_classes_that_nobody_trains_on_are_named(self, written):
        assert "'2'" in said_of(written([n % 2 + (n > 30) for n in range(40)], train=(0, 20), test=(20, 40)))


def test_entries_mean_one_thing():
    assert [word for word in ("no", "0", "+", "nano", "A-", "unknown", "-1", "nana") if is_missing(word)] == []
    assert ordered({"10", "9", "-1", "2.5", "1e3", "b", "a"}) == ["-1", "2.5", "9", "10", "1e3", "a", "b"]
    ranges = ["20-29", "25\u201334", "<5", ">=10", "65+", "[20,30)", "(20, 30]", "b2", "3D", "mayor", "C10", "2a"]
    assert [word for word in ranges if resembles_number(word)] == []
    for alike in (
        ["yes", "Yes", "yes.", " YES", "yes\u200b"],
        ["1", "1.0", "01", "+1", "1e0", "\uff11"],
        ["new york", "New_York"],
    ):
        assert len(set(map(spelling, alike))) == 1
    apart = [
        "A",
        "A+",
        "A-",
        "C",
        "C++",
        "C#",
        "12345678901234567890123456789012",
        "12345678901234567890123456789013",
        "1-2",
        "12",
    ]
    assert len({spelling(word) for word in apart}) == len(apart) - 1 + (spelling("A") != spelling("C"))


def test_a_refusal_of_data_is_one_of_data(tmp_path):
    write(tmp_path / "table.csv", [[*row[:2], "a\nb" if row[2] == "0" else row[2], *row[3:]] for row in rows_of()])
    (tmp_path / "table.csv").write_text((tmp_path / "table.csv").read_text().replace("a\nb", '"a\nb"'))
    with pytest.raises(DatasetCorruptError, match=r"without control characters, but line 3 of .* has 'a\\nb'"):
        load(tmp_path)

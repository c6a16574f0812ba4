"""Tables of people: whatever is wrong with one is a sentence that names file and line."""

import os

import numpy as np
import pytest

from fedfacet.data.tables import header_of, read_table, standardised
from fedfacet.errors import DatasetCorruptError


@pytest.fixture
def read(tmp_path):
    """Write a table and read its columns ``age`` and ``kind``."""

    def read(content, **settings):
        path = tmp_path / "table.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_table(path, ("age", "kind"), expected="a table", remedy="restore it", **settings)

    return read


@pytest.mark.parametrize(
    "content",
    [
        "id,age,kind\n1,20,a\n2,-3,b\n",
        "\ufeffid,age,kind\n1,20,a\n2,-3,b\n",
        "id,age,kind\r\n1,20,a\r\n2,-3,b",
        "kind,id,age\na,1,20\n\nb,2,-3\n\n",
        'id,age,kind\n"1,5",20,a\n"a ""name""",-3,"b"\n',
        "id, age, kind\n1, 20, a\n2, -3, b\n",
        "age,kind,age\n20,a,99\n-3,b,99\n",
        "age,kind\n20,a\n|9,c\n-3,b\n",
    ],
)
def test_what_a_table_says_does_not_depend_on_how_it_is_written(read, content):
    table = read(content, comment="|")
    assert len(table) == 2
    assert table.whole("age", -5, 20).tolist() == [20, -3]
    assert table.codes("kind", ("b", "a")).tolist() == [1, 0]
    assert set(table.columns) == {"age", "kind"}, "nothing else is kept"


def test_a_table_without_a_header_is_read_by_the_names_given(read):
    table = read("a,20\nb,-3\n", names=("kind", "age"))
    assert table.whole("age", -5, 20).tolist() == [20, -3]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("age,kind\n20,a\n7", r"2 entries in every line of \S+table\.csv, but got 1 in line 3"),
        ("age,kind\n20,a,b\n", "2 entries in every line .* but got 3 in line 2"),
        ('age,kind\n"20\n",a\n7\n', "2 entries in every line .* but got 1 in line 4"),
        ("age,sort\n20,a\n", r"a column `kind` in line 1 of \S+table\.csv"),
        ("", "a column `age` in line 1"),
        ("age,kind\n", r"\S+table\.csv to be a table, but it has no rows"),
        ('age,kind\n20,"a\n', r"rows in \S+table\.csv, but what follows line 1 cannot be read \(unexpected end of data\)"),
        (b"age,kind\n20,\xff\n", r"to be a table in UTF-8, but it is in another encoding"),
        ("age,kind\n20," + "a" * 200_000 + "\n", r"what follows line 1 cannot be read \(field larger than field limit"),
    ],
)
def test_a_broken_table_is_refused(read, content, sentence):
    with pytest.raises(DatasetCorruptError, match=rf"^Expected .*{sentence}.*restore it\.$"):
        read(content)


@pytest.mark.parametrize(
    "entry", ["", "x", "nan", "inf", "1.0", "1e1", "1_0", "+1", " 1 ", "٣", "0x1", "-1", "21", "9" * 5000, "\x00", "--1"]
)
def test_what_is_no_whole_number_in_range_is_refused(read, entry):
    table = read(f"age,kind\n20,a\n{entry},a\n")
    with pytest.raises(
        DatasetCorruptError, match=r"^Expected `age` to be a whole number from 0 to 20 .* in line 3: restore it\.$"
    ):
        table.whole("age", 0, 20)


def test_only_a_blank_is_read_as_a_blank(read):
    table = read("age,kind\n,a\n")
    assert table.whole("age", 0, 20, blank=-1).tolist() == [-1]
    with pytest.raises(DatasetCorruptError, match=r"from 0 to 20, or blank in every line .* got 'x' in line 2"):
        read("age,kind\nx,a\n").whole("age", 0, 20, blank=-1)


def test_another_category_is_named(read):
    with pytest.raises(DatasetCorruptError, match=r"`kind` to be one of 'a', 'b' in every line .* but got 'c' in line 3"):
        read("age,kind\n1,b\n2,c\n").codes("kind", ("a", "b"))


def test_a_private_table_does_not_say_what_came(read):
    table = read("age,kind\nsecret,secret\n", private=True)
    for refused in (lambda: table.whole("age", 0, 20), lambda: table.codes("kind", ("a", "b"))):
        with pytest.raises(DatasetCorruptError, match="but got something else in line 2") as caught:
            refused()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "table.csv"
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: os.symlink("/dev/zero", path)}
    make[kind](path)
    with pytest.raises(
        DatasetCorruptError, match=r"table\.csv to be a table, but it cannot be read \(OSError: it is no file\)"
    ):
        read_table(path, ("age",), expected="a table", remedy="restore it")


def test_rows_in_their_order_for_a_large_table(read):
    ages = np.arange(30_000) % 1000
    table = read("age,kind\n" + "".join(f"{age},a\n" for age in ages))
    assert np.array_equal(table.whole("age", 0, 999), ages)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8])
def test_a_constant_column_is_constant_whatever_its_mean_is_rounded_to(dtype):
    draw = np.random.default_rng(0)
    for rows in (1, 2, 3, 6, 7, 37, 100, 1000):
        values = np.concatenate(
            [
                [0.1, 14.62, 1 / 3],
                10.0 ** draw.integers(*((-3, 4) if dtype == np.float16 else (-30, 30)), 20) * draw.normal(size=20),
            ]
        )
        values = values.astype(dtype) if np.issubdtype(dtype, np.inexact) else draw.integers(0, 250, 20).astype(dtype)
        values = values[np.isfinite(values)]
        table = np.concatenate([np.repeat(values[None], rows, axis=0), values[None] + dtype(1)])
        got = standardised(table, np.arange(rows))
        assert not got[:-1].any()
        assert np.allclose(got[-1], (table[-1].astype(float) - table[0].astype(float)).astype(np.float32))


def test_what_float32_rounds_away_is_no_spread():
    mixed = np.array([[float(np.float32(0.1))], [0.1], [0.1], [0.2]])
    assert np.allclose(standardised(mixed, np.arange(3)).ravel(), [0, 0, 0, 0.1], atol=1e-7)
    assert np.isfinite(standardised(np.array([[1e-200], [2e-200], [1.0]]), np.arange(2))).all()
    assert np.allclose(standardised(np.array([[1e9], [1e9 + 1000], [1e9]]), np.arange(2)).ravel(), [-1, 1, -1])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a;b;c\n1,5;2;3\n", "line 1 of .* apart by ',', but it has 3 by ';' and 1 by ','.*`dataset.separator=semicolon`"),
        ("a\tb\n1\t2\n", "2 by '.t' and 1 by ','.*`dataset.separator=tab`"),
        ("a|b\n1|2\n", "`dataset.separator=bar`"),
        ("a,b\n1,2\n".encode("utf-16"), "in UTF-8, but it is in UTF-16: save it as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16-le"), "UTF-16"),
        ("\u00e4,b\n1,2\n".encode("latin-1"), "in UTF-8, but it is in another encoding: save it as UTF-8"),
        ("a,a \n1,2\n", "each once"),
        ("a,\x1b[31m\n1,2\n", r"but got 'a, \\x1b\[31m'"),
        ("a,b,\n1,2,\n", "name every column"),
    ],
)
def test_a_header_that_names_no_columns_says_why(tmp_path, content, sentence):
    (tmp_path / "table.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DatasetCorruptError, match=sentence) as caught:
        header_of(tmp_path / "table.csv", expected="a table", remedy="restore it")
    assert str(caught.value).isprintable()


def test_a_header_may_hold_other_separators_in_quotes(tmp_path):
    (tmp_path / "table.csv").write_text(' "a;b;c","d|e|f", g \n1,2,3\n')
    assert header_of(tmp_path / "table.csv", expected="a table", remedy="restore it") == ["a;b;c", "d|e|f", "g"]

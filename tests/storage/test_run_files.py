"""A run folder's files read, whatever lies there."""

import os

import pytest

from fedfacet.errors import CheckpointError
from fedfacet.storage.run_files import MOST_BYTES, json_of, rows_of
from fedfacet.storage.table import Table


def test_pipes_folders_and_links_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent", tmp_path / "link"):
        for read in (json_of, rows_of):
            with pytest.raises(CheckpointError, match=r"no file|Is a directory|no such file|is a link") as caught:
                read(path)
            assert str(path) in str(caught.value)


def test_files_larger_than_a_memory_are_not_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(5 << 30)
    for read in (json_of, rows_of):
        with pytest.raises(CheckpointError, match=f"larger than {MOST_BYTES:,} bytes"):
            read(tmp_path / "sparse")


@pytest.mark.parametrize("content", ["[" * 10**6, "{", '"\xff"'])
def test_damaged_json_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"recursion|Expecting|codec"):
        json_of(tmp_path / "file")


@pytest.mark.parametrize("content", ["a,b\n1\n", "a,b\n1,2,3\n", f"a\n{'1' * 200_000}\n"])
def test_damaged_tables_are_refused(tmp_path, content):
    (tmp_path / "file").write_text(content)
    with pytest.raises(CheckpointError, match=r"more or fewer values|field larger"):
        rows_of(tmp_path / "file")


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = Table(tmp_path / "table.csv")
    rows = [{"round": "1", "said": "a, b"}, {"round": "2", "said": "two\nlines"}]
    for row in rows:
        table.append(row)
    assert rows_of(table.file) == rows


def test_a_table_with_a_head_that_nobody_wrote_is_not_taken_up(tmp_path):
    table = Table(tmp_path / "table.csv")
    table.append({"a" * 200_000: 1})
    with pytest.raises(CheckpointError, match="cannot be read"):
        Table(table.file).take_up(table.record())

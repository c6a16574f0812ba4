"""Tables that a run adds rows to; ``tests/callbacks/test_csv_log.py`` has whole runs."""

import pytest

from fedfacet.storage.table import Table


def test_a_table_without_rows_at_the_checkpoint_loses_those_that_a_killed_run_wrote_after_it(tmp_path):
    before = Table(tmp_path / "t.csv")
    record = before.record()
    before.append({"round": 2, "x": 1})
    again = Table(tmp_path / "t.csv")
    again.take_up(record)
    again.cut_back(1)
    again.append({"round": 2, "x": 3})
    assert (tmp_path / "t.csv").read_text() == "round,x\n2,3\n"


def test_rows_are_added_all_or_none(tmp_path):
    table = Table(tmp_path / "t.csv")
    table.append()
    assert not table.file.exists()
    table.append({"x": 1}, {"x": 2})
    with pytest.raises(ValueError, match=r"^Expected the columns \['x'\]"):
        table.append({"x": 3}, {"y": 4})
    assert table.file.read_text() == "x\n1\n2\n"
    assert table.record()["rows"] == 2

"""Tables that a run adds rows to; ``tests/callbacks/test_csv_log.py`` has whole runs."""

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

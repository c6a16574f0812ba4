"""A run whose clients are too many for files of text, here 24 of them, and reports on it."""

import json

import fedfacet
from fedfacet.analysis.page import page_of
from fedfacet.analysis.runs import find_runs
from fedfacet.analysis.selection import selection_of
from fedfacet.callbacks import heterogeneity_error, summary
from fedfacet.storage import dealt


def test_no_file_lists_every_client_and_reports_can_do_without(tmp_path, monkeypatch):
    few = [f"paths.output_dir={tmp_path / 'few'}", "~callbacks.figures"]
    many = [f"paths.output_dir={tmp_path / 'many'}"]
    job = ("selector=feddiverse", "heterogeneity='true'", "participation=check_in", "participation.num_clients=12")
    job += ("federation.rounds=3", "model.width=4", "threads=1", "seed=2", "federation.cohort_size=6")
    for folder in (few, many):
        fedfacet.train(*job, *folder)
        for module in (dealt, summary, heterogeneity_error):
            monkeypatch.setattr(module, "MANY", 10)
    for name in ("metrics.csv", "heterogeneity.csv", "disclosures.csv"):
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
    told, said = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("few", "many"))
    counts = told.pop("participation_counts")
    assert said.pop("num_clients") == 24
    assert said.pop("participation_histogram") == {str(n): counts.count(n) for n in sorted(set(counts))}
    for one in (told, said):
        one.pop("seconds")
    assert told == said
    runs = [find_runs([tmp_path / name]) for name in ("few", "many")]
    found = [selection_of(run, rows=["selector"], columns=["seed"]) for run in runs]
    assert len({repr(one.evenness) for one in found}) == len({repr(one.types) for one in found}) == 1
    page = page_of(runs[1], command="report")
    assert "24 clients" in page
    assert "Not shown" not in page

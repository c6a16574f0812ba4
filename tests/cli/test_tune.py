"""``src/tune.py``: a search whose trials are cells of a sweep, shared by processes, and gone on with by the same command."""

import re
import shlex
import signal
import statistics
import sys

import pytest

from fedfacet.analysis.runs import load_run
from fedfacet.commands.tune import _print_best, main
from fedfacet.config import preflight
from fedfacet.errors import ConfigError
from fedfacet.runs.study import Dimension, Study

optuna = pytest.importorskip("optuna", reason="the extra `tune` is not installed")

LR, SELECTOR = "optimizer.lr=tag(log,interval(0.01,0.3))", "selector=uniform,round_robin"
BEGINS = re.compile(r"^(?:\S+)/cells/(\w{16}) (begins|goes on): ", re.MULTILINE)
TRIAL = re.compile(r"^trial (\d+) of \d+: (.+): val/\S+ = ([\d.]+)$", re.MULTILINE)


@pytest.fixture
def cells(tmp_path):
    return tmp_path / "logs" / "train" / "cells"


@pytest.fixture
def tune(start):
    """Return a function that starts a search of quick runs."""
    return lambda *arguments, **how: start("federation.rounds=1", *arguments, script="tune.py", **how)


def trials_in(cells, study="default"):
    """The trials of a study, as Optuna reads its file."""
    journal = optuna.storages.journal
    storage = journal.JournalStorage(journal.JournalFileBackend(str(cells / "tune.journal")))
    return optuna.load_study(study_name=study, storage=storage).trials


def values_of(cells, at="last", metric="val/acc_worst_group"):
    return {run.name: load_run(run).at(at)[metric] for run in cells.iterdir() if (run / "summary.json").exists()}


def test_two_processes_share_a_study_and_run_no_cell_twice(tune, cells, tmp_path):
    command = (LR, "selector=uniform", "tune.n_trials=3")
    ended = [
        process.result() for process in [tune(*command, out=tmp_path / f"{n}.out", err=tmp_path / f"{n}.err") for n in "ab"]
    ]
    assert [one.status for one in ended] == [0, 0], [one.err for one in ended]
    trials = trials_in(cells)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    told = [int(number) for one in ended for number, _, _ in TRIAL.findall(one.out)]
    assert sorted(told) == [1, 2, 3]
    assert all(TRIAL.search(one.out) for one in ended), "one of them did all of it"
    begun = [name for one in ended for name, _ in BEGINS.findall(one.out)]
    assert sorted(begun) == sorted(values_of(cells))
    assert sorted(values_of(cells).values()) == sorted(trial.value for trial in trials)
    assert len({trial.params["optimizer.lr"] for trial in trials}) == 3, "two processes drew alike"
    assert any("3 of 3 trials are finished.\n" in one.out for one in ended)


@pytest.mark.slow
def test_a_killed_study_goes_on_and_ends_as_if_it_had_not_been_killed(tune, start, cells, tmp_path):
    command = (LR, SELECTOR, "tune.n_trials=3", "federation.rounds=6")

    def rounds_in(run):
        return (run / "metrics.csv").read_bytes().count(b"\n") - 1 if (run / "metrics.csv").exists() else 0

    process = tune(*command)
    process.wait_until(lambda: sum(rounds_in(run) >= 2 for run in cells.glob("*")) == 2)
    process.kill(signal.SIGKILL)
    process.wait()
    states = [trial.state.name for trial in trials_in(cells)]
    assert states == ["COMPLETE", "RUNNING"]
    before = values_of(cells)
    again = tune(*command).result()
    assert again.status == 0, again.err
    assert [how for _, how in BEGINS.findall(again.out)] == ["goes on", "begins"]
    assert [int(number) for number, _, _ in TRIAL.findall(again.out)] == [2, 3]
    assert before.items() < values_of(cells).items()
    other = tune(*command, "paths.sweep_dir=other").result()
    assert other.status == 0, other.err
    broken, whole = trials_in(cells), trials_in(tmp_path / "other")
    assert [(one.params, one.value) for one in broken] == [(one.params, one.value) for one in whole]


@pytest.mark.slow
def test_a_finished_study_says_what_was_best_and_how_to_report_it(tune, cells, files_of, tmp_path, monkeypatch):
    command = (
        "optimizer.lr=interval(0.2,0.4)",
        "seed=0,1",
        "tune.metric=val/acc",
        "tune.at=best",
        "federation.rounds=2",
        "local.amount=8",
        "partition.scale=0.2",
        "selector=uniform",
        "model.width=4",
        "model.hidden=16",
    )
    first = tune(*command, "tune.n_trials=1").result()
    assert first.status == 0, first.err
    command = (*command, "tune.n_trials=2")
    more = tune(*command).result()
    assert [int(number) for number, _, _ in TRIAL.findall(more.out)] == [2]
    trials = trials_in(cells)
    measured = values_of(cells, "best", "val/acc")
    assert len(measured) == 4, "a cell for each seed"
    assert len(set(measured.values())) > 1, "or the mean says nothing"
    by_lr = {lr: [] for lr in (trial.params["optimizer.lr"] for trial in trials)}
    for name, value in measured.items():
        by_lr[load_run(cells / name).settings["optimizer.lr"]].append(value)
    assert [trial.value for trial in trials] == [pytest.approx(statistics.fmean(by_lr[lr])) for lr in by_lr]

    def cells_as_they_are():
        return {name: content for name, content in files_of(cells).items() if name.split("/")[0] in measured}

    before = cells_as_they_are()
    again = tune(*command).result()
    assert cells_as_they_are() == before
    best = max(trials, key=lambda trial: trial.value)
    assert f"the best one is trial {best.number + 1}, val/acc = {best.value:.4f}: optimizer.lr=" in again.out
    script, *arguments = shlex.split(again.out.splitlines()[-1])[1:]
    assert script.endswith("train.py")
    monkeypatch.chdir(tmp_path)
    _, jobs = preflight("train", [script, *arguments])
    assert [job.seed for job, _ in jobs] == [2, 3, 4]
    assert {job.optimizer.lr for job, _ in jobs} == {best.params["optimizer.lr"]}
    assert {job.model.width for job, _ in jobs} == {4}, "what was fixed"


@pytest.mark.slow
def test_equal_trials_are_one_cell(tune, cells):
    ended = tune(SELECTOR, "tune.n_trials=5").result()
    assert ended.status == 0, ended.err
    assert len(TRIAL.findall(ended.out)) == 5
    assert len(BEGINS.findall(ended.out)) == len(values_of(cells)) <= 2


@pytest.mark.slow
def test_a_trial_that_fails_is_named_and_tried_again_by_the_same_command(tune, cells):
    command = ("federation.cohort_size=choice(3,200)", "selector=uniform", "tune.n_trials=5")
    for _ in range(2):
        ended = tune(*command).result()
        states = [trial.state.name for trial in trials_in(cells)]
        failed = states.count("RUNNING")
        assert len(states) == failed + states.count("COMPLETE") == 5
        assert 0 < failed < 5
        assert ended.status == 1
        assert f"{5 - failed} of 5 trials are finished, {failed} failed.\n" in ended.out
        assert ended.out.count("federation.cohort_size=200: failed\n") == failed
        assert ended.err.count("not finished: ") == 1, ended.err
    assert "federation.cohort_size=3: val/acc_worst_group = " not in ended.out, "that was done before"


def test_a_metric_that_no_run_has_is_refused_with_those_there_are(tune):
    ended = tune(LR, "tune.n_trials=2", "tune.metric=val/accuracy").result()
    assert ended.status == 2
    assert "val/accuracy is not: give one of val/acc, " in ended.err.splitlines()[-1]


@pytest.mark.slow
def test_a_study_with_another_space_or_other_settings_is_refused(tune, cells):
    command = (LR, "seed=0,1", "tune.n_trials=1")
    assert tune(*command).result().status == 0
    for changed, named in (
        (("optimizer.lr=interval(0.01,0.3)", *command[1:]), "optimizer.lr"),
        ((*command, SELECTOR, "local.amount=3"), "selector, settings"),
        ((*command, "seed=0,2"), "seed"),
        ((*command, "tune.at=best"), "tune.at"),
    ):
        refused = tune(*changed).result()
        assert (refused.status, refused.err.count("error: ")) == (2, 1), changed
        assert f"there are other values of {named}: " in refused.err.splitlines()[-1]
    assert len(trials_in(cells)) == 1
    # What no number depends on may change, and another study may have any space.
    same = tune(*command, "engine=debug", "tune.n_trials=1").result()
    assert same.status == 0, same.err
    assert tune("optimizer.lr=0.1,0.2", "tune.n_trials=1", "tune.study=other").result().status == 0
    assert [len(trials_in(cells, study)) for study in ("default", "other")] == [1, 1]


REFUSED = [
    # what is given, what is said
    ((), "Expected something to search"),
    (("optimizer.lr=0.1", "seed=0,1"), "Expected something to search"),
    ((LR, "tune.metric=test/acc_worst_group"), "Expected `tune.metric` to be one of the validation set"),
    ((LR, "tune.metric=loss"), "Expected `tune.metric` to be one of the validation set"),
    ((LR, "tune.n_trials=0"), "Expected `tune.n_trials` to be "),
    ((LR, "tune.n_trials=many"), "Expected `tune.n_trials` to be "),
    ((LR, "tune.seed=-1"), "Expected `tune.seed` to be "),
    ((LR, "tune.direction=up"), "Expected `tune.direction` to be "),
    ((LR, "tune.at=first"), "Expected `tune.at` to be "),
    ((LR, "tune.study=a/b"), "Expected letters, digits, `.` and `-` in `tune.study`"),
    ((LR, "tune.n_trails=3"), "the nearest are `tune.n_trials`"),
    (("optimizer.lrr=interval(0.1,0.2)",), "`optimizer.lr`"),
    (("selector=uniform,unifrom",), "`selector=uniform`"),
    (("optimizer.lr=interval(0.2,0.1)",), "Expected two numbers in order"),
    ((LR, "sweep=table1"), "Expected no grid beside what is searched"),
    ((LR, "sweep.workers=2"), "Expected one worker"),
    ((LR, "hydra/launcher=joblib"), "hydra/launcher"),
    ((LR, "resume=run"), "Expected `resume` for a single run only"),
    ((LR, "paths.output_dir=run"), "Expected `paths.output_dir` for a single run only"),
    ((LR, "-m"), "Expected settings as key=value, without dashes"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_bad_input_costs_one_sentence_and_nothing_is_written(arguments, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tune.py"])
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
    finally:
        signal.signal(signal.SIGINT, handler)
    out, err = capfd.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert re.fullmatch(r"error: Expected [^\n]+\n", err), err
    assert said in err
    assert not list(tmp_path.iterdir())


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tune.py"])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit):
        main([LR])
    assert '`pip install "fedfacet[tune]"`' in capfd.readouterr().err


def test_trials_that_tie_are_named_once_for_each_draw(tmp_path, capsys):
    space = {"selector": Dimension(("uniform", "pow_d"), None)}
    study, drawn = Study(tmp_path, "default", space, {}, direction="maximize", seed=0), {}
    for value in (0.5, 0.5, 0.5, 0.5, 0.25):
        with study.next(5, ()) as (number, values):
            study.tell(number, value)
        if value == 0.5:
            drawn.setdefault(values["selector"], number)
    assert len(drawn) == 2
    assert study.tied(0.5) == list(drawn.values())
    _print_best(study.tied(0.5), study.best()[0], "val/acc = 0.5000", [], ["selector=uniform"], ["0"])
    first, second = (number + 1 for number in drawn.values())
    out = capsys.readouterr().out
    assert out.endswith("selector=uniform seed=1,2,3 -m\n")
    assert out.startswith(
        f"trials {first}, {second} tie for the best: this search does not tell them apart\nthe first of them is trial {first},"
    )


def test_what_a_journal_says_that_nobody_draws_becomes_no_override(tmp_path):
    """It may be somebody else's; a text could make parts of texts."""
    space = {"selector": Dimension(("uniform", "pow_d"), None)}
    made = {"direction": "maximize", "seed": 0}
    with Study(tmp_path, "default", space, {}, **made).next(5, ()) as (number, drawn):
        assert (number, set(drawn)) == (0, {"selector"})
    journal = tmp_path / "tune.journal"
    journal.write_text(journal.read_text().replace("uniform", "${x}").replace("pow_d", "${y}"))
    with pytest.raises(ConfigError, match="there are other values of selector"):
        Study(tmp_path, "default", space, {}, **made)
    lines = journal.read_text().splitlines(keepends=True)
    lines = [line.replace("${x}", "uniform").replace("${y}", "pow_d") if "facts" in line else line for line in lines]
    journal.write_text("".join(lines))
    forged = Study(tmp_path, "default", space, {}, **made)
    with pytest.raises(ConfigError, match="Expected trials of this study's values"), forged.next(5, ()):
        pytest.fail("a forged trial is handed out")

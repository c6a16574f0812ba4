"""What a user sees of a bad command line is tested in tests/cli."""

import pytest

from fedfacet.config import check_resumable, compose_job, differing_key, override_of, preflight
from fedfacet.errors import CheckpointError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


SAVED = {"seed": 1, "federation": {"rounds": 5, "cohort_size": 9}, "paths": {"x": 1}, "choices": {"partition": "gsc"}}


def changed(**changes):
    return SAVED | changes


class TestResumable:
    def test_the_same_with_rounds_left(self):
        check_resumable(SAVED, SAVED, 4)
        check_resumable(SAVED, changed(federation={"rounds": 9, "cohort_size": 9}, paths={"x": 2}, task="y"), 5)

    def test_the_key_that_differs_is_named(self):
        assert differing_key(SAVED, changed(seed=2)) == ("seed", 1, 2)
        assert differing_key(SAVED, changed(federation={"rounds": 6, "cohort_size": 3})) == (
            "federation.cohort_size", 9, 3,
        )  # fmt: skip
        assert differing_key(SAVED, changed(more=2)) == ("more", None, 2)
        with pytest.raises(CheckpointError, match="`seed` was 1 and is now 2"):
            check_resumable(SAVED, changed(seed=2), 4)

    def test_another_option_is_named_by_its_group(self):
        saved = changed(partition={"clients": [1], "_target_": "a"})
        given = changed(partition={"clients": [2], "_target_": "a"}, choices={"partition": "gci"})
        with pytest.raises(CheckpointError, match="`partition` was 'gsc' and is now 'gci'"):
            check_resumable(saved, given, 4)
        with pytest.raises(CheckpointError, match=r"`partition\.clients` was \[1\] and is now \[2\]"):
            check_resumable(saved, given | {"choices": saved["choices"]}, 4)

    def test_free_keys_are_free_with_all_beneath_them_and_no_others(self):
        assert differing_key({"engine": {"device": "cpu"}}, {"engine": {"device": "cuda"}}) is None
        assert differing_key({"engines": 1}, {"engines": 2}) == ("engines", 1, 2)

    def test_finished_runs_are_refused_unless_something_is_left_to_do(self):
        with pytest.raises(CheckpointError, match="all its 5 rounds are done"):
            check_resumable(SAVED, SAVED, 5)
        check_resumable(SAVED, SAVED, 5, complete=False)
        with pytest.raises(CheckpointError, match="all its 6 rounds are done"):
            check_resumable(SAVED, SAVED, 6, complete=False)


class TestPreflight:
    @pytest.mark.parametrize("flag", ["--help", "--hydra-help", "--cfg=job", "--info"])
    def test_where_hydra_only_tells_something_there_is_no_job(self, flag):
        argv, jobs = preflight("train", ["train.py", "seed=3", flag])
        assert jobs == []
        assert sorted(argv) == sorted(["train.py", "seed=3", flag])

    def test_a_single_job(self, tmp_path):
        argv, [(job, run_dir)] = preflight("train", ["train.py", "seed=3", "paths.output_dir=run"])
        assert argv == ["train.py", "seed=3", "paths.output_dir=run"]
        assert job.seed == 3
        assert run_dir.resolve() == tmp_path / "run"

    @pytest.mark.parametrize("flag", ["-m", "--multirun", "hydra.mode=MULTIRUN"])
    def test_a_sweep_has_a_job_per_combination(self, flag):
        argv, jobs = preflight(
            "train", ["train.py", "seed=range(3)", flag, "selector=uniform,feddiverse", "paths.sweep_dir=sweep"]
        )
        assert [(job.seed, job.choices.selector) for job, _ in jobs] == [
            (seed, selector) for seed in range(3) for selector in ("uniform", "feddiverse")
        ]
        assert [str(run_dir) for _, run_dir in jobs] == [f"sweep/{number}" for number in range(6)]
        assert argv[1] == flag or flag in argv  # Hydra takes options in one piece only

    def test_what_only_the_jobs_have_is_left_to_them(self):
        given = ("sweep=participation_cifar100", "selector=probe_fairness", "partition=iid", "seed=1")
        settings = ("selector.max_gap=null", "optimizer.lr=2.0")
        argv, jobs = preflight("train", ["train.py", "-m", *given, "dataset.root=a b", *settings])
        assert argv == ["train.py", "-m", *given, "++dataset.root=a b", *settings]
        [(job, _)] = jobs
        assert (job.dataset.root, job.selector.max_gap) == ("a b", None)

    def test_nothing_is_written(self, tmp_path):
        preflight("train", ["train.py", "seed=1,2", "-m", "debug=smoke"])
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", ["run", "a b", "a,b", "x=y", "it's", "1234", "null", "true", "[1]", "{a}", "(b)", "/a/b c/é", "~/x"]
)
def test_any_text_survives_hydra(value):
    override = override_of("task", value)
    composed, _ = compose_job("train", [override])
    assert composed.task == value
    assert override == f"task={value}" or "'" in override

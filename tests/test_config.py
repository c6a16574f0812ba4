"""Composing, checking and comparing configurations; what a user sees of it is tested in tests/cli."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from fedfacet import config
from fedfacet.config import check_arguments, check_resumable, compose_job, differing_key, make, plain, preflight, targets
from fedfacet.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def leaves(settings, path=""):
    for key, value in settings.items():
        full = f"{path}{key}"
        yield from leaves(value, f"{full}.") if isinstance(value, dict) and value else [(full, value)]


FITTING = {
    "number": [1.5, 2, -1.0, 1e300],
    "whole": [0, -3, 10**30],
    "flag": [True, False],
    "text": ["", "x"],
    "maybe": [None, 3],
    "choice": ["a", "b"],
    "texts": [[], ["a", "b"]],
    "pairs": [[], [1, 2]],
    "table": [None, {"a": 1}],
    "part": [None, {"_target_": "builtins.dict"}],
    "other": [2.0, {"_target_": "builtins.dict"}],
    "action": [{"_target_": "builtins.print", "_partial_": True}],
    "anything": [None, 1, "x", [1], {"a": 1}],
    "bare": [None, 1, "x", [1], {"a": 1}],
}
WRONG = {
    "number": [None, True, "1.5", [1.0], {}, float("nan"), float("inf")],
    "whole": [None, True, 1.0, "1", [1], {}],
    "flag": [None, 0, 1, "true", []],
    "text": [None, 1, True, ["x"], {}],
    "maybe": [1.5, "none", False],
    "choice": ["c", None, 1, "A"],
    "texts": ["abc", None, [1], [["a"]], {"a": "b"}],
    "pairs": [1, [1.5], ["1"], [True]],
    "table": ["x", 1, ["a"]],
    "other": ["x", None, True, float("nan")],
}


class TestTypes:
    """A node's plain values are held to the signature of its target."""

    class Part:
        def __init__(
            self,
            *,
            number: float = 1.0,
            whole: int = 1,
            flag: bool = False,
            text: str = "",
            maybe: int | None = None,
            choice: Literal["a", "b"] = "a",
            texts: Sequence[str] = (),
            pairs: tuple[int, ...] = (),
            table: Mapping[str, int] | None = None,
            part: "TestTypes.Part | None" = None,
            other: subprocess.Popen | float = 1.0,
            action: Callable[[], None] = print,
            anything: Any = None,
            bare=None,
        ):
            pass

    @pytest.fixture
    def node(self, monkeypatch):
        """Return a function that makes a node of ``Part`` with one value."""
        monkeypatch.setattr(config, "get_object", lambda _: self.Part)
        return lambda key, value: OmegaConf.create({"_target_": "Part", key: value})

    @pytest.mark.parametrize("key", FITTING)
    def test_what_fits(self, node, key):
        for value in FITTING[key]:
            check_arguments("part", node(key, value))

    @pytest.mark.parametrize("key", WRONG)
    def test_what_does_not(self, node, key):
        for value in WRONG[key]:
            with pytest.raises(ConfigError, match=rf"Expected `part\.{key}` to be .+, but got .+: ") as refusal:
                check_arguments("part", node(key, value))
            assert repr(value) in str(refusal.value)

    def test_what_is_expected_is_said_in_words(self, node):
        for key, value, words in (
            ("number", "x", "a finite number"),
            ("maybe", "x", "a whole number or null"),
            ("flag", "x", "true or false"),
            ("choice", "x", "'a' or 'b'"),
            ("texts", "x", "a list, each entry a text"),
            ("table", "x", "settings or null"),
        ):
            with pytest.raises(ConfigError, match=words):
                check_arguments("part", node(key, value))

    def test_unknown_arguments_come_with_the_nearest(self, node):
        with pytest.raises(ConfigError, match=r"`part\.chioce`: the nearest are `part\.choice`"):
            check_arguments("part", node("chioce", "a"))

    def test_a_target_that_does_not_exist(self):
        for target in ("fedfacet.nowhere.Nobody", "nobody", "fedfacet.selectors.uniform.Uniform", "", 3, None):
            with pytest.raises(ConfigError, match=r"`part\._target_` to name a class or function"):
                check_arguments("part", OmegaConf.create({"_target_": target}))


def test_every_setting_belongs_to_a_class_or_is_listed():
    """No key escapes the checks."""
    composed, _ = compose_job("train", ["logger=wandb", "transforms=clip"])
    beneath = tuple(f"{path}." for path, _ in targets(composed))
    own = {key for key, _ in leaves(plain(composed)) if not key.startswith((*beneath, "choices."))}
    assert own == set(config.SETTINGS)


@pytest.mark.parametrize("key", config.SETTINGS)
def test_no_setting_takes_just_anything(key):
    if key == "where_present":
        wrong = "[1]"
    else:
        wrong = "{a: 1}" if key in ("wandb.tags", "federation.on_bad_update", "wandb.mode") else "[[1]]"
    with pytest.raises(ConfigError, match=f"`{key}`"):
        compose_job("train", [f"{key}={wrong}"])


def test_lists_of_parts_may_be_empty():
    composed, _ = compose_job("train", ["callbacks=[]", "logger=[]", "transforms=[]"])
    assert (composed.callbacks, composed.logger, composed.transforms) == ({}, {}, {})
    composed, _ = compose_job("train", ["~callbacks.progress", "logger=[wandb,tensorboard]"])
    assert "progress" not in composed.callbacks
    assert set(composed.logger) == {"wandb_log", "tensorboard_log"}


def test_options_named_like_booleans_need_no_quotes():
    composed, _ = compose_job("train", ["heterogeneity=true"])
    assert composed.choices.heterogeneity == "true"
    assert composed.heterogeneity._target_.endswith("TrueHeterogeneity")


def test_the_last_of_two_options_counts():
    composed, _ = compose_job("train", ["selector=all", "selector=uniform", "seed=3", "seed=4"])
    assert (composed.choices.selector, composed.seed) == ("uniform", 4)


class TestWherePresent:
    def test_the_chosen_options_decide(self):
        composed, _ = compose_job("train", ["fidelity=released_code"])
        assert composed.selector.orthogonal == "signed"
        assert composed.local.sampling == "with_replacement"
        assert composed.where_present == {}
        composed, _ = compose_job("train", ["fidelity=released_code", "selector=uniform", "heterogeneity=true"])
        assert "orthogonal" not in composed.selector
        assert composed.local.sampling == "with_replacement"

    def test_the_command_line_has_the_last_word(self):
        composed, _ = compose_job("train", ["fidelity=released_code", "selector.orthogonal=absolute"])
        assert composed.selector.orthogonal == "absolute"
        assert composed.selector.rotation == "random"
        composed, _ = compose_job("train", ["debug=smoke", "federation.rounds=2"])
        assert composed.federation.rounds == 2

    def test_smoke_is_small(self):
        composed, _ = compose_job("train", ["debug=smoke", "experiment=spawrious_gsc"])
        assert composed.federation.cohort_size <= 3
        assert composed.local.amount <= 2
        assert all(group.count == 1 for group in composed.partition.clients)
        assert composed.dataset.image_size <= 32
        assert "fedfacet-smoke" in composed.dataset.root
        assert composed.model.weights == "none"


class TestMake:
    def test_facts_reach_whom_they_concern(self, tmp_path):
        log = make(OmegaConf.create({"_target_": "fedfacet.callbacks.csv_log.CsvLog"}), run_dir=tmp_path, rounds=7)
        assert log.metrics_file == tmp_path / "metrics.csv"

    def test_facts_are_handed_over_as_they_are(self, tmp_path):
        fact = {"_target_": "builtins.exit", "interpolation": "${nowhere}"}
        node = OmegaConf.create({"_target_": "fedfacet.callbacks.wandb_log.WandbLog", "mode": "disabled", "tags": ["a"]})
        log = make(node, run_dir=tmp_path, run_config=fact, facts={})
        assert log.run_config is fact
        assert log.tags == ("a",)

    def test_functions_stay_partial(self):
        composed, _ = compose_job("train", ["loss=generalized_cross_entropy", "loss.q=0.5"])
        assert make(composed.loss).keywords == {"q": 0.5}


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

    def test_nothing_is_written(self, tmp_path):
        preflight("train", ["train.py", "seed=1,2", "-m", "debug=smoke"])
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", ["run", "a b", "a,b", "x=y", "it's", "1234", "null", "true", "[1]", "{a}", "(b)", "/a/b c/é", "~/x"]
)
def test_any_text_survives_hydra(value):
    override = config.override_of("task", value)
    composed, _ = compose_job("train", [override])
    assert composed.task == value
    assert override == f"task={value}" or "'" in override

"""What a user sees of a bad command line is tested in tests/cli."""

from importlib.metadata import packages_distributions

import pytest
from omegaconf import OmegaConf

from fedfacet.commands.train import name_left
from fedfacet.config import check_resumable, compose_job, differing_key, override_of, preflight, shown
from fedfacet.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own_options(tmp_path):
    """Return a function that writes an option into a folder of somebody's own."""

    def write(name, **content):
        file = tmp_path / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# @package _global_\n" * name.startswith("experiment") + OmegaConf.to_yaml(content))

    write.searchpath = f"hydra.searchpath=['file://{tmp_path / 'conf'}']"
    return write


SAVED = {
    "seed": 1,
    "federation": {"rounds": 5, "cohort_size": 9},
    "callbacks": {},
    "paths": {"x": 1},
    "choices": {"partition": "gsc"},
}


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

    def test_bad_updates_may_be_dropped_from_now_on_but_not_until_now(self):
        raising, dropping = (changed(federation=SAVED["federation"] | {"on_bad_update": how}) for how in ("raise", "drop"))
        check_resumable(raising, dropping, 4)
        with pytest.raises(CheckpointError, match=r"`federation\.on_bad_update` was 'drop' and is now 'raise'"):
            check_resumable(dropping, raising, 4)

    def test_a_measurement_that_a_longer_run_would_leave_out_is_said_or_refused(self, caplog):
        seldom = {"callbacks": {"evaluate": {"every_n_rounds": 2}, "save_checkpoint": {"every_n_rounds": 3}}}
        longer = {"federation": {"rounds": 9, "cohort_size": 9}}
        check_resumable(changed(**seldom), changed(**seldom, **longer), 4)  # stopped before its last round
        often = {"callbacks": {"evaluate": {"every_n_rounds": 5}}}
        check_resumable(changed(**often), changed(**often, **longer), 5)
        by_training = {"scheduler": {"metric": "train/loss", "patience": 3}}
        assert not caplog.messages
        check_resumable(changed(**seldom, **by_training), changed(**seldom, **by_training, **longer), 5)
        assert len(caplog.messages) == 1
        assert "Round 5 was measured because it was the last" in caplog.text
        assert "(callbacks.evaluate.every_n_rounds=2)" in caplog.text
        plateau = {"scheduler": {"metric": "val/loss", "patience": 3}}
        with pytest.raises(CheckpointError, match=r"its scheduler has seen round 5, which callbacks\.evaluate"):
            check_resumable(changed(**seldom, **plateau), changed(**seldom, **plateau, **longer), 5)


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

    @pytest.mark.parametrize("flag", ["-m", "hydra.mode=MULTIRUN"])
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

    def test_a_value_for_what_a_sweep_sweeps_over_takes_the_place_of_its_values(self):
        argv, jobs = preflight("train", ["train.py", "-m", "sweep=participation_classes", "partition.classes_per_client=5"])
        assert argv[-1] == "partition.classes_per_client=choice(5)", "by another name both would be swept over"
        assert {job.partition.classes_per_client for job, _ in jobs} == {5}

    @pytest.mark.parametrize(
        ("swept", "number"),
        [
            (["seed=range(0,1000000000)"], "1,000,000,000"),
            (["seed=range(0,1,1e-9)"], "1,000,000,000"),
            (["seed=range(101)", "optimizer.lr=range(1,101)"], "10,100"),
        ],
    )
    def test_a_slip_of_the_keyboard_makes_no_sweep(self, swept, number):
        with pytest.raises(ConfigError, match=f"at most 10,000 jobs, but these overrides ask for {number}: "):
            preflight("train", ["train.py", "-m", *swept])

    def test_options_may_be_swept_over_by_a_pattern(self):
        _, jobs = preflight("train", ["train.py", "-m", "selector=glob(un*)"])
        assert [job.choices.selector for job, _ in jobs] == ["uniform"]

    def test_jobs_lie_where_hydra_puts_them(self, tmp_path):
        command = ["train.py", "-m", "seed=0,1", "paths.sweep_dir=all", "hydra.sweep.subdir=s${seed}"]
        assert [str(run_dir) for _, run_dir in preflight("train", command)[1]] == ["all/s0", "all/s1"]
        (tmp_path / "all" / "s1").mkdir(parents=True)
        (tmp_path / "all" / "s1" / "config.yaml").touch()
        with pytest.raises(ConfigError, match="all/s1 already holds a run"):
            preflight("train", command)
        with pytest.raises(ConfigError, match=r"several are to have all/s: let hydra\.sweep\.subdir tell them apart"):
            preflight("train", [*command, "hydra.sweep.subdir=s"])

    def test_a_sweep_may_have_a_launcher(self, own_options):
        own_options("hydra/launcher/cluster", _target_="hydra._internal.core_plugins.basic_launcher.BasicLauncher", nodes=1)
        launcher = (own_options.searchpath, "hydra/launcher=cluster", "hydra.launcher.nodes=2")
        _, jobs = preflight("train", ["train.py", *launcher, "sweep=cells", "seed=0,1", "-m"])
        assert len(jobs) == 2

    @pytest.mark.parametrize("override", ["+hydra.sweeper.params.seed='1,2'", "hydra.sweeper.params={seed: '1,2'}"])
    def test_values_in_hydras_own_node_are_refused(self, override):
        with pytest.raises(ConfigError, match="Expected the values of a sweep as key=value,value"):
            preflight("train", ["train.py", override, "-m"])

    @pytest.mark.parametrize("override", ["resume=0,1", "paths.output_dir=a,b", "resume=a"])
    def test_what_is_for_a_single_run_is_refused(self, override):
        with pytest.raises(ConfigError, match="for a single run only"):
            preflight("train", ["train.py", "-m", override, "seed=0"])

    def test_a_home_folder_that_the_shell_left_is_refused(self):
        with pytest.raises(ConfigError, match="the shell has left the ~"):
            preflight("train", ["train.py", "paths.output_dir='~/x'"])

    @pytest.mark.parametrize("holding", ["thesis.tex", "photos/", "checkpoints/"])
    def test_a_folder_that_holds_something_else_is_refused(self, tmp_path, holding):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / holding).mkdir() if holding.endswith("/") else (tmp_path / "kept" / holding).touch()
        with pytest.raises(ConfigError, match=f"new or an empty output folder, but kept holds '{holding.rstrip('/')}'"):
            preflight("train", ["train.py", "paths.output_dir=kept"])
        with pytest.raises(ConfigError, match="new or an empty output folder"):
            preflight("train", ["train.py", "paths.output_dir=/"])

    def test_a_folder_that_a_run_left_as_it_began_is_refused_with_the_way_to_begin_again(self, tmp_path):
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / "partition.json").touch()
        with pytest.raises(ConfigError, match=r"holds 'partition\.json': .* or add resume=auto"):
            preflight("train", ["train.py", "paths.output_dir=killed"])
        preflight("train", ["train.py", "paths.output_dir=killed", "resume=auto"])

    def test_a_folder_in_a_run_is_refused(self, tmp_path):
        (tmp_path / "run" / "checkpoints").mkdir(parents=True)
        for name in ("config.yaml", "partition.json"):
            (tmp_path / "run" / name).touch()
        for inner in ("run/checkpoints", "run/a/b"):
            with pytest.raises(ConfigError, match=rf"outside of other runs', but {inner} lies in that of the run \S+/run:"):
                preflight("train", ["train.py", f"paths.output_dir={inner}"])

    def test_what_a_start_that_failed_has_left_does_not_matter(self, tmp_path):
        (tmp_path / "again" / ".hydra").mkdir(parents=True)
        (tmp_path / "again" / "train.log").touch()
        assert preflight("train", ["train.py", "paths.output_dir=again"])[1]

    def test_nothing_is_written(self, tmp_path):
        preflight("train", ["train.py", "seed=1,2", "-m", "debug=smoke"])
        assert list(tmp_path.iterdir()) == []


def test_a_configuration_is_shown_as_the_run_will_have_it():
    asked = ["train.py", "experiment=cifar100_participation", "local.amount=16"]
    config = OmegaConf.create(shown("train", [*asked, "--cfg", "job"]))
    assert (config.federation.rounds, config.optimizer.momentum) == (50, 0.9), "by the step budget, and by where_present"
    for flags in ([], ["--cfg=hydra"], ["--cfg=job", "-p", "federation"], ["--help"], ["--cfg=job", "-m"]):
        assert shown("train", [*asked, *flags]) is None
    with pytest.raises(ConfigError, match="did you mean `selector=uniform`"):
        shown("train", ["train.py", "--cfg=job", "selector=unifrm"])


def test_clients_by_a_column_are_told_by_their_name_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("column", "by_column"):
        with pytest.raises(
            ConfigError, match=r"got `\w+`: for a client per .* give `partition=natural partition\.label=COLUMN`"
        ):
            preflight("train", ["train.py", f"partition={name}"])
    preflight("train", ["train.py", "partition=natural", "partition.label=a"])


@pytest.mark.skipif("hydra_plugins" in packages_distributions(), reason="the package is there")
def test_a_sweeper_that_is_not_installed_is_told_from_a_misspelt_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="got `optuna`: run `pip install --no-deps hydra-optuna-sweeper`"):
        preflight("train", ["train.py", "hydra/sweeper=optuna", "optimizer.lr=interval(0.01,0.3)", "-m"])


@pytest.mark.parametrize(
    ("target", "known"), [("hydra._internal.core_plugins.basic_sweeper.BasicSweeper", True), ("a.Drawn", False)]
)
def test_only_hydras_own_sweeper_tries_the_jobs_that_the_command_line_has(tmp_path, monkeypatch, capsys, target, known):
    monkeypatch.chdir(tmp_path)
    _, jobs = preflight("train", ["train.py", f"hydra.sweeper._target_={target}", "seed=1,2", "-m"])
    assert jobs[0][0].seed == 1
    name_left(jobs, 1, tmp_path)
    assert ("seed=2" in capsys.readouterr().err) is known


class TestOwnMechanisms:
    @pytest.fixture
    def options(self, own_options):
        own_options("mechanisms/idle", idle={"_target_": "fedfacet.mechanism.Mechanism"})
        own_options("mechanisms/flat", _target_="fedfacet.mechanism.Mechanism")
        return own_options.searchpath

    def test_they_are_chosen_as_other_options_are(self, options):
        job, _ = compose_job("train", [options, "mechanisms=[idle]"])
        assert job.mechanisms == {"idle": {"_target_": "fedfacet.mechanism.Mechanism"}}
        assert compose_job("train", ["mechanisms=[]"])[0].mechanisms == {}

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            (
                "mechanisms=flat",
                r"`mechanisms\._target_` is 'fedfacet\..*': write a name",
            ),
            (
                "mechanisms=idel",
                r"one of flat, held_classes, heterofl, idle, none, static_norm, but got `idel`: did you mean `mechanisms=idle`",
            ),
            ("+mechanisms=idle", r"it is there already, so give `mechanisms=idle` without a prefix"),
        ],
    )
    def test_what_is_wrong_is_said_with_them_in_view(self, options, override, said):
        with pytest.raises(ConfigError, match=said):
            compose_job("train", [options, override])


class TestOwnRecipes:
    """What Hydra would take from a yaml without a word."""

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"federation": {"round": 7}}, r"`federation\.round`: the nearest are `federation\.rounds`"),
            ({"wandb": {"projekt": "x"}}, r"the nearest are `wandb\.project`"),
            ({"callbacks": {"decomposition": {"every_n_rounds": 5}}}, "add decomposition to the list"),
            ({"where_present": {"optimzer.momentum": 0.9}}, r"got `optimzer\.momentum`: the nearest are `optimizer\.momentum`"),
            ({"where_present": {"selector.orthogonaal": "signed"}}, r"the nearest are `selector\.orthogonal`"),
            ({"where_present": {"federation.round": 3}}, r"the nearest are `federation\.rounds`"),
            ({"where_present": {"partition.label@natual": "y"}}, r"the nearest are `partition\.label@natural`"),
        ],
    )
    def test_what_there_is_not_is_refused(self, own_options, content, said):
        own_options("experiment/mine", **content)
        with pytest.raises(ConfigError, match=said):
            compose_job("train", [own_options.searchpath, "experiment=mine"])

    def test_what_only_some_options_have_is_not(self, own_options):
        own_options(
            "experiment/mine", federation={"rounds": 7}, where_present={"selector.max_gap": 5, "optimizer.momentum": 0.5}
        )
        job, _ = compose_job("train", [own_options.searchpath, "experiment=mine"])
        assert (job.federation.rounds, job.optimizer.momentum) == (7, 0.5)

    def test_what_an_option_has_by_now_counts(self, own_options):
        """Yamls are read once, but anew when they change."""
        own_options("selector/theirs", old=1)
        own_options("experiment/mine", where_present={"selector.new": 5})
        with pytest.raises(ConfigError, match=r"got `selector\.new`"):
            compose_job("train", [own_options.searchpath, "experiment=mine"])
        own_options("selector/theirs", new=1)
        assert compose_job("train", [own_options.searchpath, "experiment=mine"])

    def test_a_default_may_refer_to_a_choice(self, own_options):
        own_options("experiment/mine", defaults=["for_${method}", "_self_"])
        for group in ("experiment", "experiment/experiment"):  # where Hydra 1.4 looks for it, and 1.3
            own_options(f"{group}/for_fedavg", federation={"rounds": 7})
        job, _ = compose_job("train", [own_options.searchpath, "experiment=mine", "method=fedavg"])
        assert job.federation.rounds == 7


@pytest.mark.parametrize(
    "value", ["run", "a b", "a,b", "x=y", "it's", "1234", "null", "true", "[1]", "{a}", "(b)", "/a/b c/é", "~/x"]
)
def test_any_text_survives_hydra(value):
    override = override_of("task", value)
    composed, _ = compose_job("train", [override])
    assert composed.task == value
    assert override == f"task={value}" or "'" in override

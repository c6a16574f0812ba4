import os

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from fedfacet.config import compose_job, composition, conf_dir, make, quoted_options
from fedfacet.config.sweeping import Sweep
from fedfacet.errors import ConfigError


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
    assert quoted_options(["heterogeneity=choice(estimated,true)", "heterogeneity=true,'true'", "compile=true"]) == [
        "heterogeneity=choice(estimated,'true')", "heterogeneity='true','true'", "compile=true",
    ]  # fmt: skip


def test_the_last_of_two_options_counts():
    composed, _ = compose_job("train", ["selector=all", "selector=uniform", "seed=3", "seed=4"])
    assert (composed.choices.selector, composed.seed) == ("uniform", 4)


def contents(config):
    """As they are spelt, in their order, in which callbacks are called."""
    spelt = OmegaConf.to_container(config, resolve=False)
    return list(spelt["callbacks"]), spelt, OmegaConf.is_struct(config), OmegaConf.is_readonly(config.hydra)


def sweeps():
    return sorted(file.stem for file in (conf_dir() / "sweep").glob("*.yaml"))


@pytest.fixture(scope="module")
def initialized():
    with composition.initialized():
        yield


@pytest.mark.usefixtures("initialized")
class TestComposed:
    @pytest.mark.parametrize("sweep", sweeps()[::2])
    def test_a_cell_is_what_hydra_composes(self, sweep):
        """One within, whose neighbours have other options or values; ``test_every_cell`` compares all of every sweep."""
        cells = Sweep("train", [f"sweep={sweep}"])
        given = cells.overrides_of(len(cells) // 3)
        expected = compose("train", given, return_hydra_config=True)
        assert contents(composition.composed("train", given)) == contents(expected)

    @pytest.mark.slow
    @pytest.mark.parametrize("sweep", sweeps())
    def test_every_cell(self, sweep):
        cells = Sweep("train", [f"sweep={sweep}"])
        for given in map(cells.overrides_of, range(len(cells))):
            expected = compose("train", given, return_hydra_config=True)
            assert contents(composition.composed("train", given)) == contents(expected)

    @pytest.mark.parametrize(
        "given",
        [
            ["experiment=cmnist_gsc_mobilenet", "method=fednova", "hydra.verbose=true", "optimizer.lr=3"],
            ["selector=all", "selector=uniform", "seed=3", "seed=4", "+selector.k=1", "++loss.x={a: 1}"],
            ["callbacks=[default,client_fairness]", "logger=[]", "optimizer={lr: 0.5}", "~callbacks.progress", "~model"],
            ["~experiment", "~transforms", "wandb.mode=offline", "selector=all"],
            ["hydra/launcher=basic", "hydra.sweep.subdir=${hydra.job.override_dirname}", "wandb.tags=[a,b]"],
        ],
    )
    def test_a_job_is_what_hydra_composes_each_time(self, given):
        expected = contents(compose("train", given, return_hydra_config=True))
        for _ in range(2):
            ours = composition.composed("train", given)
            assert contents(ours) == expected
            ours.federation.rounds = 12345  # nobody else sees it

    @pytest.mark.parametrize("given", ["optimizer.lrr=1", "+optimizer.lr=1", "selector=nothing", "seed=1,2", "~nothing"])
    def test_hydra_refuses_what_it_refuses(self, given):
        with pytest.raises(HydraException) as ours:
            composition.composed("train", [given])
        with pytest.raises(HydraException) as its:
            compose("train", [given], return_hydra_config=True)
        assert str(ours.value) == str(its.value)

    def test_only_new_options_are_merged(self, monkeypatch):
        """Of 24 cells with four combinations of options, Hydra composes none, and its list of yamls is made four times."""
        cells = Sweep("train", ["experiment=digits_gsc,cmnist_gsc", "selector=uniform,all", "seed=range(6)", "sweep=cells"])
        composition.composed("train", ["sweep=cells"])
        loader = type(GlobalHydra.instance().config_loader())
        made, whole = [], []
        usual = loader.compute_defaults_list
        monkeypatch.setattr(loader, "compute_defaults_list", lambda *given: made.append(given) or usual(*given))
        monkeypatch.setattr(composition, "compose", lambda *given, **_: whole.append(given))
        for number in range(len(cells)):
            composition.composed("train", cells.overrides_of(number))
        assert (len(made), len(whole)) == (4, 0)


def test_a_yaml_that_is_changed_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(composition, "conf_dir", lambda: tmp_path)
    (tmp_path / "kind").mkdir()
    (tmp_path / "main.yaml").write_text("defaults: [kind: one, _self_]\n")
    for text in ("a: 1", "a: 22", "defaults: [two]"):
        (tmp_path / "kind" / "one.yaml").write_text(f"{text}\n")
        (tmp_path / "kind" / "two.yaml").write_text("b: 3\n")
        GlobalHydra.instance().clear()
        with composition.initialized():
            found = [composition.composed("main", []).kind for _ in range(2)]
            assert found == [compose("main").kind] * 2
    assert found[0] == {"b": 3}


class TestWherePresent:
    def test_the_chosen_options_decide(self):
        composed, _ = compose_job("train", ["fidelity=released_code"])
        assert composed.selector.orthogonal == "signed"
        assert composed.local.sampling == "with_replacement"
        assert composed.where_present == {}
        composed, _ = compose_job("train", ["fidelity=released_code", "selector=uniform", "heterogeneity=true"])
        assert "orthogonal" not in composed.selector
        assert composed.local.sampling == "with_replacement"

    def test_fidelity_goes_before_a_recipe(self):
        composed, _ = compose_job("train", ["experiment=retina_split2", "fidelity=fedld_released_code"])
        assert (composed.aggregator.weighting, composed.loss.penalty) == ("equal", "softmax_batch")
        assert composed.model.frozen_statistics
        assert composed.loss.margin_weight == 0.03
        composed, _ = compose_job("train", ["experiment=fedld_pneumonia", "fidelity=fedld_released_code"])
        assert (composed.aggregator.weighting, composed.loss.penalty) == ("equal", "softmax_batch")
        assert "frozen_statistics" not in composed.model, "ResNet-8 has none to freeze, as docs/fedld.md says"

    def test_the_participation_studys_released_code(self):
        shakespeare = ("experiment=shakespeare", "fidelity=participation_released_code")
        composed, _ = compose_job("train", [*shakespeare, "selector=probe_fairness"])
        assert (composed.selector.starvation_pool, composed.selector.never_selected) == ("candidates", "overdue")
        assert (composed.model.num_layers, composed.model.dropout) == (1, 0.0)
        composed, _ = compose_job("train", [*shakespeare, "selector=diversity_score", "participation=dirichlet"])
        assert (composed.selector.jensen_shannon, composed.selector.scaled) == ("distance", True)
        assert composed.participation.redrawn

    def test_a_sweeps_learning_rate_is_its_optimizers(self):
        """SGD's 0.1 is a hundred times what Adam bears; and a quick trial stays one."""
        schedulers = ("sweep=participation_schedulers", "experiment=shakespeare")
        composed, _ = compose_job("train", [*schedulers])
        assert (composed.optimizer._target_, composed.optimizer.lr) == ("torch.optim.Adam", 0.001)
        assert compose_job("train", ["sweep=participation_schedulers"])[0].optimizer.lr == 0.1
        composed, _ = compose_job("train", [*schedulers, "debug=smoke"])
        assert composed.federation.rounds == 1

    def test_the_command_line_has_the_last_word(self):
        composed, _ = compose_job("train", ["fidelity=released_code", "selector.orthogonal=absolute"])
        assert composed.selector.orthogonal == "absolute"
        assert composed.selector.rotation == "random"
        composed, _ = compose_job("train", ["debug=smoke", "federation.rounds=2"])
        assert composed.federation.rounds == 2

    def test_some_settings_are_meant_for_one_option(self):
        for recipe in ("retina_split1", "retina_split2", "covid_fl"):
            composed, _ = compose_job("train", [f"experiment={recipe}"])
            assert (composed.choices.partition, composed.partition.label) == ("natural", "client")
            composed, _ = compose_job("train", [f"experiment={recipe}", "partition=dirichlet"])
            assert composed.partition.label == "y"
            composed, _ = compose_job("train", [f"experiment={recipe}", "partition=dirichlet", "partition.label=client"])
            assert composed.partition.label == "client"

    def test_smoke_is_small(self):
        composed, _ = compose_job("train", ["debug=smoke", "experiment=spawrious_gsc"])
        assert composed.federation.cohort_size <= 3
        assert composed.local.amount <= 2
        assert all(group.count == 1 for group in composed.partition.clients)
        assert composed.dataset.image_size <= 32
        assert f"fedfacet-smoke-{os.getuid()}" in composed.dataset.root, "each user's own"
        assert composed.model.weights == "none"

    @pytest.mark.parametrize("override", ["federation.cohort_size=abc", "federation=null"])
    def test_smoke_refuses_what_any_run_refuses(self, override):
        with pytest.raises(ConfigError, match="`federation"):
            compose_job("train", ["debug=smoke", override])

    def test_a_mapping_on_the_command_line_has_the_last_word_too(self):
        budget = ("experiment=cifar100_participation",)
        assert compose_job("train", [*budget, "federation={rounds: 30}"])[0].federation.rounds == 30
        assert (
            compose_job("train", [*budget, "callbacks.evaluate={every_n_rounds: 3}"])[0].callbacks.evaluate.every_n_rounds == 3
        )


class TestMake:
    def test_facts_reach_whom_they_concern(self, tmp_path):
        log = make(OmegaConf.create({"_target_": "fedfacet.callbacks.csv_log.CsvLog"}), run_dir=tmp_path, rounds=7)
        assert log.metrics.file == tmp_path / "metrics.csv"

    def test_facts_are_handed_over_as_they_are(self, tmp_path):
        fact = {"_target_": "builtins.exit", "interpolation": "${nowhere}"}
        node = OmegaConf.create({"_target_": "fedfacet.callbacks.wandb_log.WandbLog", "mode": "disabled", "tags": ["a"]})
        log = make(node, run_dir=tmp_path, run_config=fact, facts={})
        assert log.run_config is fact
        assert list(log.tags) == ["a"]

    def test_functions_stay_partial(self):
        composed, _ = compose_job("train", ["loss=generalized_cross_entropy", "loss.q=0.5"])
        assert make(composed.loss).keywords == {"q": 0.5}


class TestStepBudget:
    """The participation study's constant budget: rounds scaled by J0 R0 / J."""

    @staticmethod
    def rounds(*overrides):
        return compose_job("train", ["local.unit=steps", "federation.step_budget=8000", *overrides])[0].federation.rounds

    def test_rounds_follow_from_the_budget(self):
        assert [self.rounds(f"local.amount={amount}") for amount in (4, 8, 16)] == [2000, 1000, 500]
        assert self.rounds("local.amount=7") == 1142, "rounded down"

    def test_rounds_that_are_given_have_the_last_word(self):
        assert self.rounds("local.amount=4", "federation.rounds=30") == 30
        assert self.rounds("local.amount=4", "debug=smoke") == 1

    @pytest.mark.parametrize(("sweep", "rounds"), [("sensitivity", 2), ("fedld_decomposition", 10)])
    def test_sweeps_of_so_many_rounds_have_them_with_any_recipe(self, sweep, rounds):
        composed, _ = compose_job("train", [f"sweep={sweep}", "experiment=cifar100_participation"])
        assert composed.federation.rounds == rounds

    def test_without_a_budget_rounds_are_rounds(self):
        assert compose_job("train", ["local.amount=50"])[0].federation.rounds == 100


def test_a_value_of_another_kind_under_where_present_is_a_sentence():
    with pytest.raises(ConfigError, match=r"^Expected values under `where_present` of their settings' kinds, but got: [^\n]+$"):
        compose_job("train", ["+where_present={local: [x]}"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed={0: 1}", r"names as keys under `seed`, but got 0"),
        ("+selector.items={a: {true: 1}}", r"names as keys under `selector\.items\.a`, but got True"),
        ("partition.seed=${hydra:runtime.cwd}", r"`partition\.seed` to have a value"),
        ("~optimizer._partial_", r"`optimizer\._partial_` to be given, but it was left out"),
        ("~partition.clients", r"`partition\.clients` to be given, but it was left out"),
        ("~engine.device", r"`engine\.device` to be given, but it was left out"),
        ("~threads", r"`threads` to be given, but it was left out"),
    ],
)
def test_an_override_that_leaves_no_usable_value_is_named(override, said):
    with pytest.raises(ConfigError, match=said):
        compose_job("train", ["experiment=digits_gsc", override])

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from fedfacet.config import check_arguments, checks, compose_job, plain, targets
from fedfacet.config.nodes import BESIDE_ARGUMENTS
from fedfacet.errors import ConfigError

FITTING = {
    "number": [1.5, 2, -1.0, 1e30],
    "whole": [0, -3, 2**63 - 1],
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
    "number": [None, True, "1.5", [1.0], {}, float("nan"), float("inf"), 1e308, 10**400],
    "whole": [2**63, None, True, 1.0, "1", [1], {}],
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
        monkeypatch.setattr(checks, "find_target", lambda *_: self.Part)
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

    def test_what_is_missing_is_told_apart_from_what_is_misspelt(self, tmp_path, monkeypatch, caplog):
        (tmp_path / "mine_of_tests.py").write_text("import a_package_of_nobody\n")
        (tmp_path / "broken_of_tests.py").write_text("1 / 0\n")
        monkeypatch.syspath_prepend(tmp_path)
        for target, said in (
            ("nobodys_module.Mine", r"Python finds no module nobodys_module: install .* nobodys_module\.py on PYTHONPATH"),
            ("mine_of_tests.Mine", "mine_of_tests needs the module a_package_of_nobody, which is not installed"),
            ("broken_of_tests.Mine", "cannot be imported .ZeroDivisionError: division by zero.: fix the module"),
            ("fedfacet.selectors.unifrom.Uniform", "fedfacet.selectors has no `unifrom`, the nearest are uniform"),
            ("fedfacet.selectors.uniform.Uniform", "has no `Uniform`, the nearest are UniformSelector"),
            ("torch.optim.SGD.step.nothing", r"torch\.optim\.SGD\.step has no `nothing`: fix the name"),
        ):
            with pytest.raises(ConfigError, match=said):
                check_arguments("part", OmegaConf.create({"_target_": target}))
        assert not caplog.records, "one sentence, and nothing of Hydra's before it"


class TestKinds:
    """A target must be what its part is for."""

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("+callbacks.x._target_=os.system", r"to name a class or function of a module, .* but got 'os\.system'"),
            ("engine._target_=subprocess.Popen", "to name a class or function"),
            ("+callbacks.x._target_=fedfacet.selectors.all.AllSelector", r"derived from fedfacet\.callbacks\.base\.Callback"),
            ("selector._target_=fedfacet.aggregators.fedavg.FedAvg", r"derived from fedfacet\.selectors\.base\.ClientSelector"),
            ("optimizer._target_=torch.nn.Linear", r"derived from torch\.optim\.Optimizer"),
            ("selector._target_=fedfacet.selectors.base.ClientSelector", "a class with all methods"),
            ("loss._target_=torch.nn.functional.l1_loss", "a function of logits and a batch"),
            ("loss._target_=torch.nn.CrossEntropyLoss", "a function of logits and a batch"),
        ],
    )
    def test_what_is_of_another_kind_is_refused(self, override, said):
        with pytest.raises(ConfigError, match=said):
            compose_job("train", [override])

    def test_a_function_of_torchvision_makes_a_model(self):
        compose_job("train", ["~model.width", "~model.hidden", "model._target_=torchvision.models.resnet18"])


def leaves(settings, path=""):
    for key, value in settings.items():
        full = f"{path}{key}"
        yield from leaves(value, f"{full}.") if isinstance(value, dict) and value else [(full, value)]


def own_settings(name, overrides=()):
    """Return the keys of a config that belong to no class."""
    composed, _ = compose_job(name, overrides)
    beneath = tuple(f"{path}." for path, _ in targets(composed))
    return {
        key
        for key, value in leaves(plain(composed))
        if (not key.startswith((*beneath, "choices.")) or key.rpartition(".")[2] in BESIDE_ARGUMENTS)
        and (value != {} or key in checks.SETTINGS)  # an option that does nothing: `correction=none`
    }


def test_every_setting_belongs_to_a_class_or_is_listed():
    """No key escapes the checks; what the command attacks by is held to them there."""
    of_attack = {key for key in own_settings("attack") if key.partition(".")[0] not in ("members", "shadow")}
    checked_there = {"output", "victim", "moment"}
    chosen = ["logger=wandb", "transforms=clip", "partition=celeba_gsc"]
    of_server = own_settings("serve", [*chosen, "card=card.yaml", "roster=roster.yaml"])
    assert own_settings("train", chosen) | of_server | of_attack - checked_there == set(checks.SETTINGS)


@pytest.mark.parametrize("key", checks.SETTINGS)
def test_no_setting_takes_just_anything(key):
    if key == "where_present":
        wrong = "[1]"
    else:
        wrong = "{a: 1}" if key in ("wandb.tags", "federation.on_bad_update", "wandb.mode") else "[[1]]"
    with pytest.raises(ConfigError, match=f"`{key}`"):
        compose_job("attack" if key in ("run", "round", "clients", "delta") else "train", [f"{key}={wrong}"])

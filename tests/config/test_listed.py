"""What a run folder may set is listed; whatever else it sets, in whatever spelling, is refused before anything is made."""

import inspect
import random
import re
import typing
from collections.abc import Mapping
from pathlib import Path

import pytest
from hydra.utils import get_object
from lightning.pytorch import loggers
from omegaconf import OmegaConf

from fedfacet.config import compose_job, conf_dir, needed_to_resume, plain, targets
from fedfacet.config.nodes import BESIDE_ARGUMENTS
from fedfacet.config.trust import check_resumed, check_saved_overrides, composed_without, may_choose, may_set
from fedfacet.cores import num_cores
from fedfacet.errors import CheckpointError, FedFacetError

GIVEN_AGAIN = {
    "dataset.url", "dataset.name", "dataset.subset", "dataset.download", "model.path", "model.arguments", "devices.capacity",
    "devices.availability", "privacy.noise_key_file", "selector.agent", "engine.choice", "lightning_log.logger",
    "lightning_log.arguments", "wandb_log.project", "wandb_log.entity", "wandb_log.mode", "wandb_log.tags", "deploy.kit",
    "deploy.clients", "wandb.project", "wandb.entity", "wandb.mode", "wandb.tags", "paths.output_dir", "resume", "trust",
    "where_present", "sweep.workers", "mechanisms",
}  # fmt: skip
"""Settings that may be texts or mappings and that no folder sets: a new one is either listed, or named here."""

OF_NUMBERS = {"devices.tiers", "partition.clients", "engine.workers"} | {
    f"{name}.metrics"
    for name in ("evaluate", "auc", "calibration", "fairness", "client_fairness", "personal_evaluate", "submodel_evaluate")
}
"""Arguments whose texts no folder sets, but which it may set to numbers, to `auto`, or to trusted parts."""

OF_OTHER_COMMANDS = ("attack", "hydra")


def takes_texts(hint):
    """Tell whether an argument may be a text, or holds some."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return True
    return hint in (str, Path, typing.Any, inspect.Parameter.empty) or any(map(takes_texts, inner)) or (
        inspect.isclass(origin := typing.get_origin(hint) or hint) and issubclass(origin, Mapping)
    )  # fmt: skip


def arguments():
    """Yield every argument of every option that may be a text, as the path in a configuration."""
    for file in sorted(conf_dir().glob("*/*.yaml")):
        group = file.parent.name
        if "@package _global_" in file.read_text() or group in OF_OTHER_COMMANDS:
            continue
        node = OmegaConf.load(file)
        for path, part in targets(OmegaConf.create({group: node})):
            parameters = inspect.signature(get_object(part["_target_"])).parameters
            for key in set(part) - {"_target_", "_partial_"} - BESIDE_ARGUMENTS:
                if takes_texts(parameters[key].annotation) if key in parameters else isinstance(part[key], str):
                    yield (*path.split("."), str(key))


def settings():
    """Yield the path and the default of every setting of ``train`` and ``serve``, a word where it may be a text."""
    for name in ("train", "serve"):
        of_file = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{name}.yaml"), resolve=False)
        for key, value in of_file.items():
            inner = value if isinstance(value, dict) and value else {"": value}
            for last, default in inner.items() if key not in ("defaults", "hydra") else ():
                if last != "_target_":
                    yield (key, last) if last else (key,), "word" if isinstance(default, str | list | dict) else default


def test_every_argument_that_may_be_a_text_is_listed_or_given_again():
    for path in sorted(set(arguments())):
        is_listed = may_set(path, "none" if path[-1] == "weights" else "word")
        assert is_listed != (".".join(path[-2:]) in GIVEN_AGAIN | OF_NUMBERS), (
            f"{'.'.join(path)}: list it, or name it in GIVEN_AGAIN"
        )


def test_every_setting_is_listed_or_given_again():
    for path, value in settings():
        assert may_set(path, value) != (".".join(path) in GIVEN_AGAIN), f"{path}: list it, or name it in GIVEN_AGAIN"


def test_options_that_reach_others_are_chosen_on_the_command_line():
    options = [file for file in conf_dir().glob("*/*.yaml") if file.parent.name != "attack"]
    chosen = {f"{file.parent.name}={file.stem}" for file in options if not may_choose(file.parent.name, file.stem)}
    assert chosen == {"deploy=flare", "deploy=loopback", "hydra=default", "logger=wandb", "paths=default"}
    assert not may_choose("logger", ["csv", "wandb"])


def gate(saved, *given, name="train"):
    """What a resume does with a folder's overrides before it makes anything."""
    check_saved_overrides(saved, given, "here")
    given = ["resume=run", "paths.output_dir=run", *given]
    config, _ = compose_job(name, [*(one for one in saved if one not in given), *given])
    check_resumed(plain(config), composed_without(name, saved, given), given, "here")


HOSTS = ["http://127.0.0.1:9", "sqlite:////tmp/x.db", "/etc", "../outside", "theirs", "1", "true", "null"]
LOG = "fedfacet.callbacks.lightning_log.LightningLog"


def hostile(draw):
    """Overrides by which a folder has a logger talk to somebody."""
    logger = draw.choice([name for name in loggers.__all__ if name != "Logger"])
    known = [name for name in inspect.signature(getattr(loggers, logger)).parameters if name != "kwargs"]
    name = draw.choice([*known, "settings.base_url", "host", "x.y.z", "save_dir"])
    value = draw.choice(HOSTS)
    nested = value
    for part in reversed(name.split(".")):
        nested = f"{{{part}: {nested if nested.startswith('{') else repr(value)}}}"
    whole = f"{{_target_: {LOG}, logger: {logger}, arguments: {nested}}}"
    sign = draw.choice(["+", "++"])
    return draw.choice([
        ["logger=lightning", f"logger.lightning_log.logger={logger}", f"{sign}logger.lightning_log.arguments.{name}='{value}'"],
        ["logger=[csv,lightning]", f"++logger.lightning_log.arguments={nested}"],
        [f"{sign}logger.x={whole}"],
        [f"++logger={{x: {whole}}}"],
        [f"{sign}callbacks.x={whole}"],
        [f"++callbacks={{x: {whole}}}"],
        ["logger=lightning", f"+where_present={{logger.lightning_log.arguments: {nested}}}"],
        ["logger=lightning", f"+where_present={{logger.lightning_log.logger@lightning: {logger}}}"],
        ["logger=wandb", f"++wandb.{draw.choice(['project', 'entity'])}='{value}'"],
        [f"logger={draw.choice(['wandb', '[csv,wandb]'])}", draw.choice(["seed=1", "~logger.wandb_log.mode"])],
        [f"+callbacks.x={{_target_: fedfacet.callbacks.wandb_log.WandbLog, entity: {value!r}}}"],
        ["+callbacks.x._target_=fedfacet.callbacks.wandb_log.WandbLog"],
    ])  # fmt: skip


@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(16, 40))])
def test_no_folder_has_a_logger_talk_to_somebody(seed):
    saved = hostile(random.Random(seed))
    with pytest.raises(FedFacetError, match=r"^[^\n]+$") as told:
        gate(saved)
    if isinstance(told.value, CheckpointError):
        assert re.search(r"(logger|callbacks|wandb)", str(told.value)), saved


def test_what_a_folder_adds_is_used_if_the_command_line_gives_it_again():
    again = ["logger.lightning_log.logger=MLFlowLogger", "+logger.lightning_log.arguments.tracking_uri='sqlite:///x.db'"]
    gate(["logger=lightning", *again], *again)
    gate(["logger=lightning"])
    gate(["logger=lightning"], *again)
    gate(["logger=tensorboard", "wandb.mode=offline"], "logger=wandb", "wandb.mode=offline")
    assert needed_to_resume(["seed=1", "logger=lightning", *again, "logger=[csv,wandb]", "engine.workers=100000"]) == [
        *again, "logger=[csv,wandb]", "engine.workers=100000",
    ]  # fmt: skip


CORES = num_cores()
OTHER_PARTS = [
    ("dataset.name", "dataset", "hf"), ("model.arguments", "model", "timm"), ("model.name", "model", "timm"),
    ("choice", "engine", "auto"),
]  # fmt: skip
"""What an override needs: a word in it, the group and the option."""


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (f"engine.workers={CORES + 1}", "engine.workers"),
        ("++engine.workers=100000", "engine.workers"),
        ("dataset.download=true", "dataset.download"),
        ("+where_present={dataset.download: true}", "dataset.download"),
        ("dataset.url='https://theirs'", "dataset.url"),
        ("model.weights=/etc/passwd", "model.weights"),
        ("+where_present={model.weights: imagenet}", "model.weights"),
        ("privacy.noise_key_file=/etc/passwd", "privacy.noise_key_file"),
        ("devices.capacity=/etc/passwd", "devices.capacity"),
        ("dataset.name=theirs", "dataset.name"),
        ("++model.arguments={pretrained_cfg: {url: 'http://theirs'}}", "model.arguments.pretrained_cfg.url"),
        ("+model.arguments.weights=DEFAULT", "model.arguments.weights"),
        ("model.name='hf-hub:theirs/model'", "model.name"),
        ("+model._args_=[1]", "model._args_"),
        ("wandb.entity=theirs", "wandb.entity"),
        ("sweep.workers=9", "sweep.workers"),
        ("engine.choice={engine: workers, workers: 100000, why: x}", "engine.choice"),
    ],
)
def test_no_folder_reaches_a_network_a_place_or_many_processes(override, named):
    parts = ["dataset=adult", "model=mobilenet_v2_gn", "engine=workers", "privacy=central", "devices=trace"]
    parts += [f"{group}={option}" for word, group, option in OTHER_PARTS if word in override]
    with pytest.raises(CheckpointError, match=rf"sets `{re.escape(named)}` .* again on the command line if you want that\.$"):
        gate([*parts, override])
    if "where_present" not in override:
        gate([*parts, override], override)


def test_a_folder_leads_to_no_other_run_folder():
    gate(["++paths={output_dir: theirs}"])  # Hydra takes the last of several
    settings = plain(compose_job("train", ["paths.output_dir=theirs"])[0])
    with pytest.raises(CheckpointError, match=r"it sets `paths\.output_dir`"):
        check_resumed(settings, composed_without("train", [], ["paths.output_dir=run"]), (), "here")


def test_a_fetch_goes_where_the_command_line_says():
    saved = ["dataset=adult", "dataset.root=/somewhere"]
    gate(saved)
    with pytest.raises(CheckpointError, match=r"`dataset\.root` to /somewhere: give `dataset\.root` again"):
        gate(saved, "dataset.download=true")
    gate(saved, "dataset.download=true", "dataset.root=/somewhere")


def test_weights_are_fetched_for_a_frozen_base_alone_and_if_asked_for():
    gate(["experiment=waterbirds"])
    with pytest.raises(CheckpointError, match=r"to fetch nothing, but `model\.weights` does"):
        gate(["experiment=waterbirds", "adapter=lora"])
    gate(["experiment=waterbirds", "adapter=lora"], "model.weights=imagenet")


def test_sites_are_named_on_the_command_line():
    for saved in (["deploy.clients=[theirs/client.yaml]"], ["deploy=flare", "deploy.kit=theirs"], ["deploy=flare"]):
        with pytest.raises(CheckpointError, match="again on the command line"):
            gate([*saved, "card=card.yaml", "roster=roster.yaml"], name="serve")
        gate([*saved, "card=card.yaml", "roster=roster.yaml"], *saved, name="serve")

"""What a run folder may name and set: it may come from anybody, and whatever it names is called."""

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_object

from fedfacet.config.compose import choice_of, finalized, quoted_options
from fedfacet.config.composition import initialized
from fedfacet.config.kinds import KINDS
from fedfacet.config.mistakes import composed_or_explained
from fedfacet.config.nodes import parsed, plain, without_hydra
from fedfacet.cores import num_cores
from fedfacet.errors import CheckpointError

TRUSTED = ("fedfacet", "torch.optim")
"""Modules of which a saved configuration may name classes."""

FUNCTIONS = ("fedfacet.losses", "fedfacet.objectives")
"""Those of which it may name functions too; others download files, for example."""


OF_SCRIPT = "federate"
"""What ``task`` is in the settings of a run whose objects a script made; a command's is its own name."""


def check_trusted(settings: Any, trust: Sequence[str], source: object) -> None:
    """Refuse a saved configuration that names anything besides what is trusted, at any depth, or that has interpolations.

    ``${oc.create:...}`` makes a part of a text, and texts may be put together of others, so that no interpolation is let in.

    Args:
        settings: plain data.
        trust: modules that the user has named.
        source: the file, for the message.

    Raises:
        CheckpointError: with the first name that is not trusted; nothing was imported for its sake. Settings of a script's
            objects make nothing again, so they are refused too.
    """
    if isinstance(settings, Mapping) and settings.get("task") == OF_SCRIPT:
        raise CheckpointError(
            f"Expected a run whose settings make its data and model again, but a script made that of {source}: use one of "
            "`train.py`."
        )
    for text in _texts_in(settings):
        if "${" in text:
            raise CheckpointError(
                f"Expected {source} to hold values, but it makes one of {text!r} when it is read, by which code may run: write "
                "the value itself, or start a new run."
            )
    for name in _names_in(settings):
        if not _is_trusted(name, (*TRUSTED, *trust)):
            module = str(name).rpartition(".")[0]
            raise CheckpointError(
                f"Expected {source} to name parts of {' and '.join(TRUSTED)} only, but it names {name!r}, which may do "
                f"anything on this machine: if the folder is from somebody you trust, add trust={module or 'MODULE'} "
                f"(`--trust {module or 'MODULE'}` to the report)."
            )


def check_saved_overrides(saved: Sequence[str], given: Sequence[str], source: object) -> None:
    """Refuse overrides of a run folder that go beyond settings of trusted parts.

    Of what is Hydra's own only folders of options may be there, and only if the command line names them too.

    Args:
        saved: the overrides that the run was started with, as the folder has them.
        given: those of this command line.
        source: the file, for the message.

    Raises:
        CheckpointError: naming the override.
    """
    for override in saved:
        key = override.lstrip("+~").partition("=")[0]
        if override in given and (key == "hydra.searchpath" or not key.startswith("hydra")):
            continue  # asked for now
        if key == "hydra.searchpath":
            raise CheckpointError(
                f"Expected {source} to name no folder of options, but it has {override!r}, and options may name any code: if "
                f'you trust them, give "{override}" again.'
            )
        if key.startswith("hydra") or "@hydra" in key:
            raise CheckpointError(
                f"Expected {source} to hold settings of a run, but it has {override!r}, which is Hydra's and may run any code: "
                "start a new run."
            )
        try:
            read = parsed(override)
        except HydraException:
            raise CheckpointError(f"Expected {source} to hold overrides, but it has {override!r}: start a new run.") from None
        if read.is_sweep_override():
            raise CheckpointError(f"Expected {source} to hold overrides of one run, but it has {override!r}: start a new run.")
        value = read.value()
        if _leads_away(key, value):
            raise CheckpointError(
                f"Expected {source} to name options by their names, but it has {override!r}, which may lead to others' "
                "files: give it again if you trust it, or start a new run."
            )
        check_trusted({"_target_" if "_target_" in key else key: value, "": override}, trusted_by(given), source)


def composed_without(name: str, saved: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """Return what a command line comes to without the settings of a run folder: only the options that it may choose are kept.

    Args:
        name: of the primary config.
        saved: the folder's overrides.
        given: those of the command line, which may change a setting that only the folder adds.

    Raises:
        ConfigError: if Hydra cannot compose them.
    """
    overrides = [one for one in quoted_options(saved) if (choice := choice_of(one)) is not None and may_choose(*choice)]
    for one in quoted_options(given):
        if choice_of(one) is not None or one.startswith("hydra"):
            overrides.append(one)
        elif not one.startswith("~"):
            overrides.append(f"++{one.lstrip('+')}")
    with initialized():
        whole = composed_or_explained(name, overrides)
        return plain(finalized(without_hydra(whole), overrides, whole.hydra.runtime.choices))


def check_resumed(settings: Mapping[str, Any], usual: Mapping[str, Any], given: Sequence[str], source: object) -> None:
    """Hold what a run folder's overrides change, by whatever way, to what a folder may set.

    Args:
        settings: the resolved configuration of the resumed run.
        usual: that of the command line without the settings of the folder.
        given: the overrides of the command line.
        source: the file with the folder's overrides, for the message.

    Raises:
        CheckpointError: with the first setting that must be given on the command line, or that names what is not trusted.
    """
    for path, value in differences(settings, {"choices": {}, **usual}):  # which say more than the settings of an option
        check_trusted({path[-1]: value}, trusted_by(given), source)
        if not may_set(path, value):
            key = _shown(".".join(path[1:] if path[0] == "choices" else path))
            raise CheckpointError(
                f"Expected {source} to set nothing that may reach a network, a place outside the run folder or many processes, "
                f"but it sets `{key}` to {_shown(value)}: give `{key}` again on the command line if you want that."
            )
    fetches = _fetched(settings)
    for key in fetches:
        if not any(one.lstrip("+").startswith(f"{key}=") for one in given):
            raise CheckpointError(
                f"Expected {source} to fetch nothing, but `{key}` does: give `{key}` again on the command line, or start a new "
                "run."
            )
    root, own = ((config.get("dataset") or {}).get("root") for config in (settings, usual))
    if "dataset.download" in fetches and root != own:
        raise CheckpointError(
            f"Expected to fetch data to a folder of this command line, but {source} sets `dataset.root` to {_shown(root)}: "
            "give `dataset.root` again on the command line."
        )


def _fetched(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings by which a resumed run fetches something: without an adapter weights come from the checkpoint."""
    dataset, model, adapter = (settings.get(part) or {} for part in ("dataset", "model", "adapter"))
    weights = str(model.get("weights") or "none")
    fetched = "_target_" in adapter and weights != "none" and not os.path.isfile(weights)
    return [*(["dataset.download"] if dataset.get("download") else []), *(["model.weights"] if fetched else [])]


def _shown(value: Any) -> str:
    """Return what a folder says as it may be printed."""
    text = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def without_downloads(settings: Any, *, but_files: bool = False) -> Any:
    """Return saved settings with nothing in them, at any depth, that fetches data or weights from somewhere.

    With ``but_files``, weights that are a file of this machine stay: a frozen base is read from it, and from no checkpoint.
    """
    if isinstance(settings, Mapping):
        nothing = {"download": False, "weights": "none"}
        stays = but_files and os.path.isfile(str(settings.get("weights")))
        return {
            key: nothing[key]
            if key in nothing and not isinstance(value, Mapping | list) and not (stays and key == "weights")
            else without_downloads(value, but_files=but_files)
            for key, value in settings.items()
        }
    if isinstance(settings, list | tuple):
        return [without_downloads(entry, but_files=but_files) for entry in settings]
    return settings


def needed_to_resume(overrides: Sequence[str]) -> list[str]:
    """Return what must stand beside ``resume=``: whatever a folder may not say itself, and ``trust=`` for others' code."""
    again = [one for one in overrides if one.startswith("hydra.searchpath=") or "${" in one or _must_be_given(one)]
    named = [name for override in overrides if "_target_" in override for name in _names_of(override)]
    modules = sorted({name.partition(".")[0] for name in map(str, named) if not _is_trusted(name, TRUSTED)})
    return [*again, *([f"trust=[{','.join(modules)}]"] if modules else [])]


def _must_be_given(override: str) -> bool:
    key, value = _read(override)
    if key in ("resume", "trust", "paths.output_dir") or key.startswith("hydra"):
        return False
    choice = choice_of(override)
    return _leads_away(key, value) or not (may_set(key.split("."), value) if choice is None else may_choose(*choice))


def _leads_away(key: str, value: Any) -> bool:
    """Tell whether an override leads out of the folders of options, by a path, or to another place, by a package."""
    if key in ("resume", "card", "roster") or key.startswith("hydra"):
        return False
    texts = [key] if "." in key and ".." not in key else [key, *_texts_in(value)]  # a setting may be any text
    return "@" in key or any(part in text for text in texts for part in ("/", "\\", ".."))


def _read(override: str) -> tuple[str, Any]:
    return override.lstrip("+~").partition("=")[0], parsed(override).value()


def _names_of(override: str) -> Iterator[Any]:
    key, value = _read(override)
    yield from [value] if "_target_" in key else _names_in(value)


def trusted_by(overrides: Sequence[str]) -> list[str]:
    """Return the modules that ``trust=`` names on a command line."""
    values = [parsed(override).value() for override in overrides if override.startswith("trust=")]
    return [str(name) for value in values for name in (value if isinstance(value, list) else [value])]


def _names_in(value: Any) -> Iterator[Any]:
    """Yield every name that would be called."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if "_target_" in str(key):  # `engine._target_` too, as in where_present
                yield entry
            else:
                yield from _names_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _names_in(entry)


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text, keys among them."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _texts_in(entry)
    elif value is not None:
        yield str(value)


def _is_trusted(name: Any, modules: Sequence[str]) -> bool:
    """Tell whether a name lies in one of some modules, and what it stands for was made in one of them too."""

    def within(text: str, modules: Sequence[str]) -> bool:
        return any(text == module or text.startswith(f"{module}.") for module in modules)

    if not isinstance(name, str) or not within(name, modules):
        return False
    try:
        found = get_object(name)
    except Exception:  # whatever is wrong with it is said when it is used
        return True
    made_in = str(getattr(found, "__module__", ""))
    own = set(modules) - set(TRUSTED)
    if not within(made_in, modules) or within(made_in, sorted(own)):
        return within(made_in, modules)
    # Other classes of ours read files, start processes or compose configurations.
    if inspect.isclass(found):
        return any(issubclass(found, get_object(kind)) for kind in {*KINDS.values(), "torch.optim.lr_scheduler.LRScheduler"})
    return within(made_in, FUNCTIONS)


_WORDS = {
    "task": "task",
    "seed": "",
    "federation": "on_bad_update",
    "threads": "",
    "memory_format": "memory_format",
    "precision": "precision",
    "compile": "",
    "deterministic": "",
    "fingerprint": "fingerprint",
    "smoke": "",
    "card": "card",
    "roster": "roster",
    "sites": "",
    "paths": "data_dir log_dir sweep_dir",
    "dataset": "root folder file labels tokenizer attribute attributes bins classes columns decimal drop encoding features "
    "folders input land missing numbers sensitive_features separator split states target water words",
    "partition": "label keep_together name settings partition_by",
    "model": "architecture attention name norm weights",
    "adapter": "base_dtype modules_to_save target_modules trained",
    "objective": "masked",
    "loss": "penalty rate",
    "correction": "",
    "personal": "",
    "optimizer": "",
    "scheduler": "anneal metric mode",
    "capacity": "assignment",
    "submodel": "dynamics grouping membership policy",
    "local": "sampling unit",
    "privacy": "accountant cover",
    "disclosure": "allows attributes",
    "server_data": "",
    "heterogeneity": "multiclass pivot",
    "selector": "fairness jensen_shannon never_selected normalisation orthogonal pretraining rotation scheme scoring space "
    "starvation_pool variant within",
    "aggregator": "against buffers groups length_correction measure over rate rule scope second_moment tau_eff variant "
    "weighting",
    "participation": "mode",
    "devices": "on_late uplink",
    "termination": "metric",
    "mechanisms": "head",
    "transforms": "compensation how",
    "engine": "backend device sums",
    "callbacks": "classes keep method odds others positive_class",
}
"""Group or setting -> the arguments in it that may be texts."""

_LOGGERS = {"csv", "tensorboard", "lightning"}
"""Those that write only to the run folder, if nothing else is set."""

_REACH_OUT = ("fedfacet.callbacks.wandb_log", "fedfacet.deploy.")
"""Modules of ours whose classes talk to others, or start what does, by themselves."""

_ABSENT = object()


def may_choose(group: str, options: Any) -> bool:
    """Tell whether a folder may choose an option of a group, or several."""
    if options is None:
        return True
    if group == "logger":
        return set(options if isinstance(options, list) else [options]) <= _LOGGERS
    return group not in ("deploy", "hydra", "paths")


def may_set(path: Sequence[str], value: Any) -> bool:
    """Tell whether a folder may give a setting a value.

    Args:
        path: the keys that lead to it, the group first.
        value: plain data; ``None`` where it takes the setting away.
    """
    if isinstance(value, Mapping):
        return all(may_set((*path, str(key)), entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(may_set(path, entry) for entry in value)
    group, name = path[0], path[-1]
    if group not in _WORDS or "arguments" in path or (name.startswith("_") and name not in ("_partial_", "_target_")):
        return False
    if name == "download":
        return value in (None, False)
    if (group, name) == ("engine", "workers"):
        return value in (None, "auto") or (isinstance(value, int) and value <= num_cores())
    if not isinstance(value, str):
        return True
    if name == "_target_":  # of which check_trusted says more
        return not _reaches_out(value)
    if group == "model":  # whose names may lead to a hub
        return value == "none" if name == "weights" else name in _WORDS[group].split() and bool(re.fullmatch(r"[\w.]+", value))
    return name in _WORDS[group].split()


def differences(
    settings: Mapping[str, Any], usual: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each path at which resolved settings are not the usual ones, with the value; ``None`` where they lack it.

    A part that is left out does nothing; an argument that is left out may have another default.
    """
    for key in {**usual, **settings}:
        here = (*path, str(key))
        value, own = settings.get(key, _ABSENT), usual.get(key, _ABSENT)
        if isinstance(value, Mapping) and (isinstance(own, Mapping) or own is _ABSENT):
            yield from differences(value, own if isinstance(own, Mapping) else {}, here)
        elif value is _ABSENT and isinstance(own, Mapping):
            if "_target_" not in own:
                yield from differences({}, own, here)
        elif value != own or type(value) is not type(own):
            yield here, None if value is _ABSENT else value


def _reaches_out(name: str) -> bool:
    try:
        return str(get_object(name).__module__).startswith(_REACH_OUT)
    except Exception:  # whatever is wrong with it is said when it is used
        return name.startswith(_REACH_OUT)

"""What tables and pictures call options and metrics: ``round_robin`` is "Round robin" there."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from fedfacet.analysis.runs import Run, spelled
from fedfacet.config import conf_dir
from fedfacet.errors import ConfigError
from fedfacet.plots.style import axis_name


def names_for(runs: Sequence[Run], given: Mapping[str, str]) -> dict[str, str]:
    """Return ``GROUP.OPTION`` -> its name for all options that runs chose, and the names that the user gives.

    The name of an option stands in its yaml, in the comment ``# Name: ...`` above the first key. A user may also name a value
    (``seed.3``), a key (``selector``) and a metric.

    Raises:
        ConfigError: if a name is given to something that no run has.
    """
    settings = {(key.removeprefix("choices."), spelled(value)) for run in runs for key, value in run.settings.items()}
    keys = {key for key, _ in settings}
    known = keys | {f"{key}.{value}" for key, value in settings}
    known |= {metric for run in runs for moment in ("last", "best") for metric in run.at(moment)}
    if strange := [key for key in given if key not in known]:
        near = get_close_matches(strange[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "give GROUP.OPTION, KEY.VALUE, a key or a metric."
        raise ConfigError(f"Expected --names to name what the runs have, but got {strange[0]!r}: {hint}")
    chosen = {
        (key.removeprefix("choices."), spelled(run.settings[key])) for run in runs for key in run.settings if "choices." in key
    }
    names = {f"{group}.{option}": name for group, option in sorted(chosen) if (name := option_name(group, option))}
    return names | dict(given)


def option_name(group: str, option: str) -> str | None:
    """Return the name in an option's yaml; ``None`` where there is no such yaml or name.

    Example:
        >>> option_name("selector", "round_robin")
        'Round robin'
    """
    return _comment(group, option, "Name")


CHECKED = {"paper": "the paper", "code": "the authors' code", "none": "no source"}
"""What the comment ``# Checked:`` of an option says its rule was compared with -> the words for it."""


def option_checked(group: str, option: str) -> str | None:
    """Return with what an option's rule was compared, a key of ``CHECKED``; ``None`` where its yaml does not say.

    A rule is the formula, the algorithm and the defaults. ``paper`` stands for the text in which it was published, ``code`` for
    its authors' released code without the text, and ``none`` for neither.

    Example:
        >>> option_checked("selector", "pow_d")
        'paper'
    """
    return _comment(group, option, "Checked")


def _comment(group: str, option: str, mark: str) -> str | None:
    """Return what the comment ``# <mark>: ...`` of an option's yaml says; ``None`` where there is no such yaml or comment."""
    file = conf_dir() / group / f"{option}.yaml"
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix(f"# {mark}: ").strip() for line in lines if line.startswith(f"# {mark}: ")), None)


def metric_name(metric: str, *, percent: bool) -> str:
    """Return what a sentence or a head calls a metric; a metric without a plain name keeps its key.

    Example:
        >>> metric_name("test/acc_worst_group", percent=True), metric_name("val/loss", percent=False)
        ('Worst-group accuracy (%)', 'Validation loss')
    """
    name = axis_name(metric).removeprefix("test ")
    name = name if name == metric else name[0].upper() + name[1:]
    return f"{name} (%)" if percent else name

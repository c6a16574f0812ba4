"""The loss of the runs that a folder holds, after one round, by what it comes from."""

from collections.abc import Sequence
from pathlib import Path

from fedfacet.analysis.runs import find_runs
from fedfacet.commands.output import Output
from fedfacet.errors import ConfigError
from fedfacet.papers.fedld.decomposition import describe_decompositions, plot_decompositions, remarks_on, tables_of
from fedfacet.runs.rerun import decompose_round


def run(options: Sequence[str]) -> Output:
    """Run the round again in each run, and draw the terms of its loss."""
    given = dict(option.partition("=")[::2] for option in options)
    round, output = given.get("round"), given.get("output", "text")
    fits = given.keys() <= {"decomposition", "round", "output", "paths.output_dir", "trust"} and len(given) == len(options)
    if not fits or output not in ("text", "json") or not (round is None or round.isdecimal()):
        raise ConfigError(
            f"Expected decomposition=DIR, and at most round=NUMBER, output=text|json, trust=MODULE and paths.output_dir=DIR, "
            f"but got {' '.join(options)}: a run has its own settings."
        )
    runs = find_runs([given["decomposition"]])
    number, trust = int(round) if round else None, [name for name in given.get("trust", "").strip("[]").split(",") if name]
    described = describe_decompositions(runs, [decompose_round(run.path, number, trust=trust) for run in runs])
    figure = Path(given.get("paths.output_dir", given["decomposition"])) / "decomposition.png"
    plot_decompositions(described, figure)
    own = [
        f"{run.path}: clients keep layers to themselves (personal={personal}). There the global model is as it was at first, "
        "and its loss is that of no client's model."
        for run in runs
        if (personal := run.setting("personal")) not in (None, "null", "none")
    ]
    return Output(output, described, tables_of(described), [figure], [*remarks_on(described), *own])

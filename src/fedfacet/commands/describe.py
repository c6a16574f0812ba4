"""A federation described before any training, or what its clients say of themselves; see ``USAGE``."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from fedfacet.commands import called
from fedfacet.commands.output import Output, run_command
from fedfacet.errors import ConfigError
from fedfacet.waiting import waiting

GROUPS = ("partition", "dataset", "selector")

USAGE = """usage: {command} partition=NAME [dataset=NAME] [output=text|json] [simulate.selector=NAME] ...
       {command} experiment=NAME [OPTION OF train] ... [output=text|json] [simulate.selector=NAME] ...
       {command} selectors [FIELD=VALUE] ... [compare=NAME,NAME] [table=thesis] [cost=measured rounds=10]
       {command} submodels [output=text|json]
       {command} estimation run=DIR|[OPTION OF train] ... [output=text|json]
       {command} [capacity=NAME] [submodel=NAME] [OPTION OF train] ... [output=text|json]
       {command} devices=NAME [OPTION OF train] ... [output=text|json]
       {command} decomposition=DIR [round=N] [trust=MODULE] [output=text|json] [paths.output_dir=DIR]

Tell how heterogeneous a federation is, without training: its measures, every client's matrix, and pictures of them.

  partition=NAME            {partitions}
  partition=NAME,NAME,...   the measures of several, side by side
  partition.KEY=VALUE       e.g. partition.scale=0.2 or partition.num_clients=100
  dataset=NAME              deal this data set's samples for real: {datasets}
  experiment=NAME           what a recipe of train deals, with whatever else train takes
  output=text|json          json prints one document and nothing else
  simulate.selector=NAME    simulate whom it would choose: {selectors};
                            several, as in uniform,feddiverse, are drawn one above the other
  simulate.selector.KEY=VALUE, simulate.rounds=2000, simulate.cohort_size=9, simulate.seed=0
  paths.output_dir=DIR      where the pictures go
  selectors                 instead of a federation, all selectors in the thesis' taxonomy of client selection
    FIELD=VALUE             those alone that have it: policy=efficiency without=S,R shares=loss devices=no; a wrong field is
                            answered with all that there are
    compare=oort,fedcs      side by side; table=thesis: the thesis' table 4, and what runs its rows here
    cost=measured           what selecting costs, by the ledger of runs of rounds=10; output=text|json|markdown
  submodels                 all ways to choose the parts of smaller models, in the thesis' taxonomy of chapter 4
  estimation                how far the clients' estimates of their heterogeneity are from the truth: in a run, or
                            asked now, before any training, in the federation that these options of train make
  capacity=NAME submodel=NAME   which part of the model each client would hold, what it weighs and costs
  devices=NAME              how long a round would take every client, who would be late, and who is on-line when
  decomposition=DIR         the loss after one round, by what it comes from, of a run or of each run in a folder;
                            the round is run again, any of them where the run had callbacks.save_checkpoint.keep=all

example: {command} partition=gsc simulate.selector=feddiverse
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; return the exit status."""
    return run_command(describe, usage, argv)


def describe(argv: Sequence[str]) -> Output:
    """Return what the command that is asked for has to say.

    Raises:
        ConfigError: if the first word is close to a command, but none.
    """
    word, equals, _ = argv[0].partition("=") if argv else ("", "", "")
    known = ["decomposition"] if equals else ["selectors", "submodels", "estimation"]
    if word.isalpha() and word not in (*known, "partition") and (close := get_close_matches(word, known, n=1)):
        raise ConfigError(f"Expected a command or key=value, but got {argv[0]!r}: did you mean {close[0]}{equals}?")
    if any(argument.startswith("decomposition=") for argument in argv):
        topic, options = "decomposition", argv
    elif word in known and not equals:
        topic, options = word, argv[1:]
    elif any(argument.startswith("devices=") for argument in argv):
        topic, options = "devices", argv
    elif any(argument.startswith(("capacity", "submodel")) for argument in argv):
        topic, options = "parts", argv
    else:
        topic, options = "federations", argv
    with waiting("loads libraries and data"):
        result: Output = import_module(f"fedfacet.commands.describe_{topic}").run(options)  # late, because --help need not wait
    return result


def usage() -> str:
    """Return the help text, with the options that there are."""
    package = Path(__file__).parents[1]  # where conf/ lies is known to fedfacet.config too, which would load Hydra
    conf = package / "conf" if (package / "conf").is_dir() else package.parents[1] / "conf"
    groups = {f"{group}s": sorted(file.stem for file in (conf / group).glob("*.yaml")) for group in GROUPS}
    return USAGE.format(command=called("describe"), **{group: ", ".join(names) for group, names in groups.items()})

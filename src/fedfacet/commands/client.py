"""A site of a federation, seen by its operator; see ``USAGE``."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfacet.commands import is_answered
from fedfacet.entry import print_error, sentence_of
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError
from fedfacet.waiting import waiting

USAGE = """usage: {command} check config=FILE
       {command} verify config=FILE journal=FILE round=N client=NAME
       {command} start config=FILE kit=DIR
       {command} pilot folder=DIR sites=N [GROUP=OPTION] [KEY=VALUE] ...

The data of a site and what leaves it (docs/deployment.md).

  check    read the site's data as its client.yaml says, and tell what of them a server could have; talks to nobody
  verify   train a client once more for a round of the journal, and compare the digest of its update with the one that the
           server has written down; for sites with keep_letters: true
  start    start NVIDIA FLARE's client with the site's startup kit, in the foreground; jobs may have it answer messages as
           client.yaml says, and nothing else
  pilot    deal the clients of a simulated federation, in the options of train, to N sites on this machine, each a folder with
           a client.yaml and its samples, beside the data card and the roster; clients answer what these options ask, no more

example: {command} pilot folder=pilot sites=2 experiment=digits_gsc method=feddiverse
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; return the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if is_answered(argv or ["--help"], "client", USAGE):
        return 0
    commands = {"check": _check, "verify": _verify, "start": _start, "pilot": _pilot}
    try:
        if argv[0] not in commands:
            raise ConfigError(f"Expected one of {', '.join(commands)}, but got {argv[0]!r}: see `--help`.")
        return commands[argv[0]](argv[1:])
    except (FedFacetError, ValueError, TypeError) as error:
        print_error(sentence_of(error))
        return 2


def _keys(argv: Sequence[str], *names: str) -> Mapping[str, str]:
    """Return the values of a command's keys, each of which it must have."""
    given = dict(argument.partition("=")[::2] for argument in argv)
    if set(given) != set(names) or not all(given.values()):
        wanted = " ".join(f"{name}=..." for name in names)
        raise ConfigError(f"Expected {wanted}, but got {' '.join(argv) or 'nothing'}: see `--help`.")
    return given


def _check(argv: Sequence[str]) -> int:
    """Tell what a site has, and what it would tell."""
    file = Path(_keys(argv, "config")["config"])
    with waiting("loads libraries and data"):
        from fedfacet.deploy.questions import known_queries
        from fedfacet.deploy.settings import SiteSettings
        from fedfacet.deploy.site import Site

        settings = SiteSettings.read(file)
        site = Site(settings)
    print(f"{settings.site}: {len(site.samples)} clients whose data fit the card {site.card.name!r}")
    for name, (_, y, _) in site.samples.items():
        counts = ", ".join(f"{(y == label).sum()} {known}" for label, known in enumerate(site.card.class_names))
        too_few = ", too few for policy.min_samples" if len(y) < settings.policy.min_samples else ""
        share = settings.clients[name].holdout
        held_out = f", of which the part {share:g} is held out" if share else ""
        print(f"  {name}: {len(y)} samples ({counts}){held_out}{too_few}")
    print("What leaves the site of each client:")
    print("  at hello: how many samples it trains on, a digest of all by a key that stays here, and which part is held out")
    print("  in a round it trains in: the change of the weights, the number of samples and of steps, and the sum of its losses")
    for query in settings.policy.queries:
        kind = known_queries()[query]
        print(f"  if it is asked {query}: {kind.kind}, computed from {', '.join(sorted(kind.reads)) or 'none'} of its samples")
    return 0


def _verify(argv: Sequence[str]) -> int:
    """Compute an update again, and compare."""
    given = _keys(argv, "config", "journal", "round", "client")
    with waiting("loads libraries and data"):
        from fedfacet.deploy.journal import read_journal
        from fedfacet.deploy.memory import messages_of
        from fedfacet.deploy.settings import SiteSettings
        from fedfacet.deploy.site import Site

        settings = SiteSettings.read(Path(given["config"]))
        site = Site(settings, remembers=False)
    lines, round = read_journal(Path(given["journal"])), int(given["round"])
    if round not in lines:
        raise CheckpointError(f"Expected round {round} in the journal, but it has {len(lines)} rounds: give one of them.")
    client_id, messages = messages_of(settings, given["client"], round, lines[round]["run"])
    digests: list[str] = [site.digest_of_answer(message) for message in messages]
    digest = lines[round]["update_digests"].get(str(client_id))
    if digest is None:
        raise CheckpointError(f"Expected an update of {given['client']} in round {round} of the journal, but it has none.")
    if digests[-1] != digest:
        raise CheckpointError(
            f"Expected the update {digest} of the journal, but it comes to {digests[-1]} here: one of both is not the round's."
        )
    print(f"The update of {given['client']} in round {round} is the one that the server has written down, {digest}")
    return 0


def _start(argv: Sequence[str]) -> int:
    """Become FLARE's client."""
    given = _keys(argv, "config", "kit")
    from fedfacet.deploy.flare import EXECUTOR, SETTINGS
    from fedfacet.deploy.settings import SiteSettings
    from fedfacet.deploy.startup_kit import start

    file = Path(given["config"]).absolute()
    start(Path(given["kit"]), EXECUTOR, {SETTINGS: str(file)}, site=SiteSettings.read(file).site)


def _pilot(argv: Sequence[str]) -> int:
    """Write a pilot."""
    own = {"folder", "sites"}
    given = dict(argument.partition("=")[::2] for argument in argv if argument.partition("=")[0] in own)
    if set(given) != own or not given["sites"].isdigit():
        raise ConfigError("Expected folder=DIR and sites=N, a whole number, besides options of train: see `--help`.")
    with waiting("loads libraries and data"):
        from fedfacet.build import load_data, put_together, settle
        from fedfacet.compatibility import questions
        from fedfacet.config import compose_job, make, quoted_options
        from fedfacet.deploy.pilot import write_pilot
        from fedfacet.deploy.questions import known_queries
        from fedfacet.privacy.disclosure import KINDS

        others = [argument for argument in argv if argument.partition("=")[0] not in own]
        config, _ = compose_job("train", quoted_options(others))
        config.logger = {}
        settle(config)
        data, folder = load_data(config), Path(given["folder"])
        federation = put_together(config, folder, data, make(config.engine))
        asked = questions(
            federation.selector, federation.aggregator, federation.callbacks, federation.mechanisms, config.choices
        )
        known = known_queries()
        by = {
            "NumSamples": "every method",
            **{type(query).__name__: who for query, who in asked if type(query).__name__ in known},
        }
        holdout = config.partition.get("local_holdout", 0.0)
        files = write_pilot(data, config.choices.dataset, folder, int(given["sites"]), holdout, tuple(by))
    for file in files:
        print(file)
    print("What clients answer, by `policy.queries`; list others there before you choose another method:")
    for query, who in by.items():
        print(f"  {query}, for {who}: {KINDS.get(known[query].kind, 'undeclared')}")
    return 0

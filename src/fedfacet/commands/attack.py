"""Membership inference on finished runs; see ``USAGE``."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet.analysis.writers import Table
from fedfacet.commands import called
from fedfacet.commands.output import Output, run_command
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError
from fedfacet.moved import FORMER
from fedfacet.waiting import waiting

if TYPE_CHECKING:  # --help need not wait for what these load
    from omegaconf import DictConfig

    from fedfacet.analysis.runs import Run
    from fedfacet.attacks import Attack, Trajectories
    from fedfacet.audit.audit import Audit
    from fedfacet.audit.federations import Federations
    from fedfacet.audit.shadows import Pool, Shadows
    from fedfacet.audit.victims import KeepUpdates, Victim
    from fedfacet.data.audit_set import Members
    from fedfacet.runs.rerun import RoundAgain

USAGE = """usage: {command} run=DIR [attack=[NAME,...]] [KEY=VALUE] ...

Tell from what models say of samples which of these they were trained on. The round is run again for the clients' models, so the
run needs the checkpoint before it: previous.ckpt for the last round, callbacks.save_checkpoint.keep=all for any.

  run=DIR                   the folder of a run, or one that holds some
  attack=[NAME,...]         gap, loss_threshold, lira, rmia, trajectory; lira and rmia train shadow models, once for all runs of
                            that data and model, trajectory one and two students for each client
  attack.NAME.KEY=VALUE     e.g. attack.lira.mode=online
  victim=clients|server     whose model is attacked
  moment=after_training|received  the model that a client sends, or the one that it was sent
  round=N                   of which round; the last one that can be run again by default
  clients=[3,7]             whom; by default all whose update arrived and whose samples suffice
  members.others=holdout|test     what is told apart from members: samples that the clients hold out themselves, or the test set
  delta=1e-5                of (epsilon, delta)-privacy, for epsilon_audited and epsilon_proven
  shadow.runs=DIR           whole federations in place of shadow models: runs that differ from the attacked one in seed and
                            partition.holdout_seed alone, with partition.local_holdout=0.5 best; others there are passed over
  members.KEY=VALUE, shadow.models=16, shadow.epochs=100, shadow.KEY=VALUE, engine=workers
  output=text|json          json prints one document and nothing else
  trust=[MODULE]            modules that the run's checkpoint may name code of

What it finds is written to DIR/attacks/.

example: {command} run=logs/train/runs/<time> attack=[gap,loss_threshold,lira] shadow.epochs=25 engine=workers
"""

WHERE_IT_LIES = ("root", "download", "url")
"""Settings of a data set that shadow models do not depend on; whether it is augmented, say, they do."""

_MANY_REFERENCES = 100

_HEADS = ("attack", "members", "AUC", "95 %", "p", "AUC, unseen", "advantage", "TPR at 1 %")
_HOW_TO_READ = (
    "AUC: of all pairs of a member and another of one model, which the attack orders rightly; p: of an attack that knows "
    "nothing. AUC, unseen: the same on shadow models, among samples that they never saw. Advantage (at the attack's own "
    "threshold) and TPR are means over models."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Attack the runs; return the exit status."""
    return run_command(attack_runs, lambda: USAGE.format(command=called("attack")), argv)


def attack_runs(argv: Sequence[str]) -> Output:
    """Attack the runs that ``run=`` names, one after another, and return what to print.

    Raises:
        FedFacetError, ValueError: if the options, or all runs, do not allow it. Of several runs those that do are attacked.
    """
    with waiting("loads libraries"):
        from fedfacet.analysis.runs import find_runs
        from fedfacet.arguments import check_choice, check_within
        from fedfacet.audit.federations import Federations
        from fedfacet.audit.shadows import Shadows
        from fedfacet.config import compose_job, make, plain
        from fedfacet.config.trust import trusted_by
        from fedfacet.data.audit_set import Members

    if not any(argument.partition("=")[0] == "run" for argument in argv):
        raise ConfigError("Expected a run to attack, but got none: name its folder, run=logs/train/runs/<time>.")
    config, _ = compose_job("attack", list(argv))
    check_choice("output", config.output, ("text", "json"))
    check_choice("victim", config.victim, ("clients", "server"))
    check_choice("moment", config.moment, ("after_training", "received"))
    check_within("delta", config.delta, "(0, 1)")
    if (config.victim, config.moment) == ("server", "received"):
        raise ConfigError("Expected `moment=received` of clients, but got it with victim=server: leave one of them out.")
    if config.clients is not None and (config.victim == "server" or not config.clients):
        raise ConfigError(
            "Expected `clients` to name some whose models are attacked, but got none or the server: leave it out."
        )
    attacks = {str(name): make(node) for name, node in config.attack.items()}
    settings = plain(config)
    members = Members(**settings["members"])
    shadows = Shadows(**{name: value for name, value in settings["shadow"].items() if name != "runs"})
    if shadows.data == "others":
        check_others(config, attacks)
    federations = None
    if config.shadow.runs is not None:
        federations = Federations([run.path for run in find_runs([config.shadow.runs])], trust=trusted_by(argv))
    found, tables, remarks, figures = [], [], [], []
    errors: list[Exception] = []
    for run in find_runs([config.run]):
        try:
            audit, folder, notes = attack_run(run, config, attacks, members, shadows, federations, trusted_by(argv))
        except (FedFacetError, ValueError, OSError) as error:
            errors.append(error)
            continue
        found.append({"run": str(run.path), "folder": str(folder), "threat_model": audit.threat_model, "attacks": audit.rows})
        tables.append(table_of(f"{run.path}, {sentence_of(audit.threat_model)}", audit.rows))
        remarks += notes
        figures += sorted(folder.iterdir())
    if not found:
        raise errors[0]
    data = found[0] if len(found) == 1 else found
    return Output(config.output, data, tables, figures, [_HOW_TO_READ, *remarks], list(map(str, errors)))


def check_others(config: "DictConfig", attacks: Mapping[str, "Attack"]) -> None:
    """Raise ``ConfigError`` if shadow models of other clients' samples do not serve."""
    for clashes, what, remedy in (
        (config.victim == "server", "victim=server, which leaves no other clients", "attack clients"),
        (config.shadow.runs is not None, "shadow.runs", "leave one of them out"),
        (any(attack.least_in for attack in attacks.values()), "attack.lira.mode=online", "give mode=offline"),
    ):
        if clashes:
            raise ConfigError(
                f"Expected shadow.data=others with shadow models that saw no sample of a client's, but got {what}: {remedy}."
            )


def attack_run(
    run: "Run",
    config: "DictConfig",
    attacks: Mapping[str, "Attack"],
    members: "Members",
    shadows: "Shadows",
    federations: "Federations | None",
    trust: Sequence[str],
) -> "tuple[Audit, Path, list[str]]":
    """Attack one run, write what was found into its folder, and return it, that folder and what to remark."""
    from fedfacet.audit.audit import audit, needs_shadows, references_of, write_audit
    from fedfacet.audit.defence import proof_of
    from fedfacet.audit.federations import with_enough
    from fedfacet.audit.victims import client_victims, round_to_attack, server_victims, without_pairs
    from fedfacet.config import check_links

    check_links(run.path)
    with round_to_attack(run.path, config.round, trust=trust) as again:
        if config.round is None and again.round > again.num_rounds:
            raise CheckpointError(
                f"Expected the checkpoint before the last round of {run.path}, but there is only the one after it: attack the "
                f"round that would come next, round={again.round}, or train with callbacks.save_checkpoint.keep=all."
            )
        source = members.source(again.data)

        def victims_of(round_again: "RoundAgain[KeepUpdates]") -> "list[Victim]":
            if config.victim == "server":
                return server_victims(round_again, members)
            client_ids = None if config.clients is None else list(config.clients)
            return client_victims(round_again, members, config.moment, client_ids)

        victims = victims_of(again)
        if again.settings["federation"]["pooled"]:  # whose samples were held out client by client
            victims = without_pairs(victims)
        proof = proof_of(again, victims, config.delta, received=config.moment == "received")
        pools, compared = None, dict[str, Any]()
        if federations is not None and needs_shadows(attacks):
            pools, compared = federations.pools_for(run.path, again, victims, victims_of)
            victims = with_enough(victims, pools, attacks)
        elif needs_shadows(attacks):
            pools, compared = pools_of(again, config, shadows, source, victims), {"models": shadows.models}
        trajectories = trajectories_of(again, config, attacks, shadows, victims)
        threat_model = threat_model_of(again, config, source, victims, compared, trajectories is not None)
        threat_model |= references_of(victims, attacks)
        found = audit(
            again, victims, attacks, pools=pools, trajectories=trajectories, threat_model=threat_model, proven=proof.epsilons
        )
        folder = write_audit(found, run.path / "attacks")
        notes = [f"{run.path}: {remark}" for remark in remarks_on(found, again.num_rounds)]
        if proof.why_not is not None:
            notes.append(f"{run.path}: {proof.why_not}")
        if again.same_model is False:
            notes.append(
                f"{run.path}: round {again.round} run again came to another model than the run's own, as on another machine or "
                "with another version of torch. The models attacked are those of the round run again."
            )
        if source == "test":
            notes.append(
                f"{run.path}: the others are the test set. Where it differs from the clients' data, an attack finds that too: "
                "see `AUC, unseen`, or train with partition.local_holdout=0.2."
            )
        return found, folder, notes


def remarks_on(audit: "Audit", num_rounds: int) -> list[str]:
    """Return what a reader of the numbers must know."""
    remarks, round = [], audit.threat_model["round"]
    if round != num_rounds:
        remarks.append(f"the models are those of round {round}; the run has done {num_rounds}.")
    if audit.threat_model["shadow_models"] and any(
        row["attack"] == "lira" and row["null_auc"] != row["null_auc"] for row in audit.rows
    ):
        remarks.append("`AUC, unseen` of lira needs 6 shadow models or more.")
    remarks += epsilons_in_words(audit.rows, audit.threat_model["delta"])
    few = audit.threat_model.get("references", _MANY_REFERENCES)
    if few < _MANY_REFERENCES:
        remarks.append(
            f"rmia compares with {few} known others where they are fewest, so its scores have {few + 1} values there: hold out "
            "more samples, or raise members.known_share."
        )
    return remarks


def epsilons_in_words(rows: Sequence[Mapping[str, Any]], delta: float) -> list[str]:
    """Return what attacks refute of privacy, and what noise proves, over all victims; nothing where there is neither."""
    over = {row["attack"]: row for row in rows if row["client"] != "mean"}  # the line of all victims comes after theirs
    refuted = [(name, row["epsilon_audited"]) for name, row in over.items() if row["epsilon_audited"] == row["epsilon_audited"]]
    proven = next(iter(over.values()))["epsilon_proven"]
    sentences = [f"{name} refutes any smaller than {epsilon:.2f}" for name, epsilon in refuted]
    sentences += [f"noise proves {proven:.2f}"] if proven == proven else []
    return [f"epsilon, at delta {delta:g}: {'; '.join(sentences)}."] if sentences else []


def pools_of(
    again: "RoundAgain[KeepUpdates]", config: "DictConfig", shadows: "Shadows", source: str, victims: "Sequence[Victim]"
) -> "list[Pool]":
    """Return per victim the shadow models' answers, trained where they are not there yet; one pool unless data are others'."""
    from fedfacet.audit.shadows import shadow_data, train_pool
    from fedfacet.build import fresh_model
    from fedfacet.config import make

    def pool_of(client_id: int | None, whose: str, first: int = 0) -> "Pool":
        return train_pool(
            shadows,
            again.federation.engine.clients,
            lambda number: fresh_model(again.settings, shadows.seed, first + number),
            shadow_data(shadows, again.data, source, client_id),
            engine=make(config.engine),
            folder=Path(config.paths.log_dir) / "attack" / "shadows",
            facts=_facts(again),
            report=lambda done, all: print(f"shadow models{whose}: {done} of {all}", file=sys.stderr),
        )

    with _threads(config.threads):
        if shadows.data == "all":
            return [pool_of(None, "")] * len(victims)
        ids = [victim.client_id for victim in victims if victim.client_id is not None]
        return [pool_of(own, f" for client {own}", shadows.models * (own + 1)) for own in ids]


def trajectories_of(
    again: "RoundAgain[KeepUpdates]",
    config: "DictConfig",
    attacks: "Mapping[str, Attack]",
    shadows: "Shadows",
    victims: "Sequence[Victim]",
) -> "list[Trajectories] | None":
    """Return the students' losses where an attack needs them."""
    from fedfacet.attacks import Trajectory
    from fedfacet.audit.trajectories import record
    from fedfacet.build import fresh_model
    from fedfacet.config import make

    attack = next((attack for attack in attacks.values() if isinstance(attack, Trajectory)), None)
    if attack is None:
        return None
    with _threads(config.threads):
        return record(
            attack,
            shadows,
            again,
            victims,
            lambda number: fresh_model(again.settings, attack.seed, number),
            make_engine=lambda: make(config.engine),
            folder=Path(config.paths.log_dir) / "attack" / "trajectories",
            facts=_facts(again),
        )


def _facts(again: "RoundAgain[KeepUpdates]") -> dict[str, Any]:
    """Return what of a run's settings the attacker's models depend on."""
    import torch

    return {
        **{part: again.settings[part] for part in ("model", "optimizer", "loss")},
        "dataset": {key: value for key, value in again.settings["dataset"].items() if key not in WHERE_IT_LIES},
        "threads": torch.get_num_threads(),
        **({"privacy": private} if (private := again.settings.get("privacy")) else {}),  # older pools lack it
    }


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Have torch use so many threads for a while; with ``None`` as many as it does."""
    import torch

    kept = torch.get_num_threads()
    torch.set_num_threads(kept if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(kept)


def threat_model_of(
    again: "RoundAgain[KeepUpdates]",
    config: "DictConfig",
    source: str,
    victims: "Sequence[Victim]",
    compared: Mapping[str, Any],
    trajectories: bool,
) -> dict[str, Any]:
    """Return who is attacked and what the attacker knows, and all settings that the numbers depend on.

    ``compared`` says how many ``models`` of the attacker's there are, and of which ``federations``, if so.
    """
    from fedfacet import state
    from fedfacet.config import plain

    settings = plain(config)
    unsaid = {"runs"} if settings["shadow"]["data"] == "others" else {"runs", "data", "samples"}  # so an audit keeps its folder
    own = {name: value for name, value in settings["shadow"].items() if name not in unsaid} | {"models": 0}
    return {
        "access": "black box: the model's logits",
        "victim": config.victim,
        "moment": config.moment if config.victim == "clients" else "after_aggregation",
        "round": again.round,
        "num_rounds": again.num_rounds,
        "own_layers": any(victim.memory for victim in victims),
        "clients": [victim.client_id for victim in victims if victim.client_id is not None],
        "others": source,
        "delta": config.delta,
        "members": settings["members"],
        "attacks": {  # by former names, so that an audit keeps its folder
            name: {**attack, "_target_": FORMER.get(attack["_target_"], attack["_target_"])}
            for name, attack in settings["attack"].items()
        },
        "shadow_models": {**own, **compared} if compared or trajectories else None,
        "model_digest": state.digest(again.federation.state.model),
        "data_digest": again.federation.facts.data_digest,
        "partition_digest": again.federation.state.partition_digest,
    }


def sentence_of(threat_model: Mapping[str, Any]) -> str:
    """Return the threat model in a few words."""
    whose = "the server's model" if threat_model["victim"] == "server" else f"{len(threat_model['clients'])} clients' models"
    moment = {"after_training": "after local training", "received": "as received", "after_aggregation": "after aggregation"}
    others = {"holdout": "what clients hold out", "test": "the test set"}[threat_model["others"]]
    shadows = threat_model["shadow_models"] or {"models": 0}
    kind = "federations" if "federations" in shadows else "models"
    kind += " trained on other clients' samples" if "data" in shadows else ""
    known = f", {shadows['models']} shadow {kind}" if shadows["models"] else ""
    known += ", a shadow model and students for each" if "trajectory" in threat_model["attacks"] else ""
    known += f", {threat_model['references']} known others or more for rmia" if "references" in threat_model else ""
    return f"round {threat_model['round']}: {whose} {moment[threat_model['moment']]}, logits alone{known}; others: {others}"


def table_of(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line per attack: the AUC over all victims, and the means of what is told at single thresholds."""
    attacks = dict.fromkeys(row["attack"] for row in rows)
    by_client = {(row["attack"], row["client"]): row for row in rows}

    def cell(value: float, digits: int = 3) -> str:
        return "-" if value != value else f"{value:.{digits}f}"

    lines = []
    for attack in attacks:
        alone = next(row for row in rows if row["attack"] == attack)
        over, mean = (by_client.get((attack, which), alone) for which in ("pooled", "mean"))
        lines.append([
            attack,
            cell(over["members"], 0),
            cell(over["auc"]),
            f"[{over['auc_low']:.3f}, {over['auc_high']:.3f}]",
            f"{over['p_null']:.2g}",
            cell(over["null_auc"]),
            cell(mean["advantage"]),
            cell(mean["tpr_at_0.01"]),
        ])  # fmt: skip
    return Table(title, _HEADS, lines)

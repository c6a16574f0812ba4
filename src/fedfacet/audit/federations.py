"""Shadow federations: whole runs like the attacked one, whose clients held out other samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet import state
from fedfacet.attacks import Attack
from fedfacet.audit.shadows import Pool
from fedfacet.audit.victims import KeepUpdates, Victim, round_to_attack
from fedfacet.config import differing_key
from fedfacet.data.audit_set import SCORED
from fedfacet.errors import FedFacetError
from fedfacet.runs.rerun import RoundAgain
from fedfacet.storage import checkpoint

MAY_DIFFER = {"seed": None, "callbacks": None}
"""Settings in which a shadow federation may be unlike the attacked run, besides ``partition.holdout_seed``."""


class Federations:
    """Runs that may be shadow federations of others; a round of each is run again once, however many runs are attacked.

    Args:
        runs: folders of finished runs.
        trust: modules that their checkpoints may name code of.
    """

    def __init__(self, runs: Sequence[Path], *, trust: Sequence[str] = ()) -> None:
        self.runs, self.trust = tuple(runs), tuple(trust)
        self._known: dict[Path, tuple[str, Mapping[str, Any]]] = {}
        self._pools: dict[tuple[Path, int], tuple[str, dict[int | None, Pool]]] = {}

    def pools_for(
        self,
        run_dir: Path,
        again: RoundAgain[KeepUpdates],
        victims: Sequence[Victim],
        victims_of: Callable[[RoundAgain[KeepUpdates]], list[Victim]],
    ) -> tuple[list[Pool], dict[str, Any]]:
        """Return per victim what shadow federations' models say; and how many these are, and which.

        Args:
            run_dir: the attacked run's folder, which is left out.
            again: the attacked round.
            victims: its models.
            victims_of: a round -> its models, of the same clients at the same moment.

        Raises:
            FedFacetError: if clients hold out nothing, fewer than two runs are like the attacked one, or lack a model of it.
            CheckpointError: if a run cannot do the round again.
        """
        if not any(map(len, again.data.local_holdout)):
            raise FedFacetError(
                "Expected clients that hold out samples of their own for shadow.runs, but none does: train with "
                "partition.local_holdout=0.5 and other partition.holdout_seed."
            )
        collected: dict[Path, dict[int | None, Pool]] = {}
        digests, differing = [], None
        for path in self.runs:
            if path.resolve() == run_dir.resolve():
                continue
            if path not in self._known:
                saved, own = checkpoint.load(path / "checkpoints" / "last.ckpt")
                self._known[path] = saved.partition_digest, own
            partition_digest, settings = self._known[path]
            if partition_digest == again.before.partition_digest:  # it would tell who the members are
                continue
            if (found := difference(again.settings, settings)) is not None:
                differing = found
                continue
            if (path, again.round) not in self._pools:
                with round_to_attack(path, again.round, trust=self.trust) as other:
                    self._pools[path, again.round] = state.digest(other.federation.state.model), hear(other, victims_of(other))
            digest, collected[path] = self._pools[path, again.round]
            digests.append(digest[:12])
        if len(collected) < 2:
            of_others = f"; another's `{differing}` differs" if differing is not None else ""
            raise FedFacetError(
                f"Expected 2 runs or more that differ from {run_dir} in seed and partition.holdout_seed alone, but got "
                f"{len(collected)}{of_others}: train them, partition.holdout_seed=0,1,2,3,4,5,6,7 -m, say."
            )
        return pools_of(collected, victims), {"models": len(collected), "federations": sorted(digests)}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the first setting that makes a run no shadow federation of another; ``None`` if it is one."""
    left, right = (
        {**settings, **MAY_DIFFER, "partition": {**settings["partition"], "holdout_seed": None}} for settings in (one, other)
    )
    found = differing_key(left, right)
    return None if found is None else found[0]


def hear(again: RoundAgain[KeepUpdates], victims: Sequence[Victim]) -> dict[int | None, Pool]:
    """Return what each model of a run says of all samples that are its client's, or the federation's if it is the server's.

    By client, ``None`` for the server; each is a pool of one model.

    Args:
        again: a round of the run.
        victims: as ``client_victims`` or ``server_victims`` return them.
    """
    collected = {}
    data = again.data
    took_part = np.flatnonzero(np.asarray(again.federation.state.participation_counts) > 0).tolist()
    for victim in victims:
        all_clients = range(data.partition.num_clients)
        trained_on, own = (took_part, all_clients) if victim.client_id is None else ([victim.client_id],) * 2
        members = np.concatenate([data.partition.indices[client] for client in trained_on])
        held_out = np.concatenate([data.local_holdout[client] for client in own])
        samples = np.unique(np.concatenate([members, held_out]))
        (predicted,) = again.federation.engine.predict(victim.model, [samples], victim.memory)
        collected[victim.client_id] = Pool(samples, np.isin(samples, members)[None], predicted.logits[None])
    return collected


def pools_of(runs: Mapping[Path, Mapping[int | None, Pool]], victims: Sequence[Victim]) -> list[Pool]:
    """Return per victim what the shadow federations' models of the same client say.

    Raises:
        FedFacetError: if a shadow federation has no such model, or its client has other samples.
    """
    pools = []
    for victim in victims:
        found: list[Pool] = []
        for path, collected in runs.items():
            own = collected.get(victim.client_id)
            if own is None or not np.isin(victim.audit_set.samples, own.samples).all():
                raise FedFacetError(
                    f"Expected {path} to have a model of {_whose(victim)} on the same samples, some of them held out, but it "
                    "has none: everybody must take part in a shadow federation's round."
                )
            found.append(own)
        references = victim.audit_set.references
        heard = np.all([np.isin(references, own.samples) for own in found], axis=0)
        common = np.union1d(victim.audit_set.samples, references[heard])
        places = [np.searchsorted(own.samples, common) for own in found]
        members = np.concatenate([own.members[:, place] for own, place in zip(found, places, strict=True)])
        pools.append(
            Pool(common, members, np.concatenate([own.logits[:, place] for own, place in zip(found, places, strict=True)]))
        )
    return pools


def with_enough(victims: Sequence[Victim], pools: Sequence[Pool], attacks: Mapping[str, Attack]) -> list[Victim]:
    """Return the victims without those samples that too few shadow federations, or too many, trained on.

    Each federation draws by itself what it holds out, so that by chance a sample may be in hardly any, or in nearly all. One
    more of a kind is asked for than attacks need, as each federation in turn is attacked too, for the null.

    Raises:
        FedFacetError: if too few samples are left of a client.
    """
    least_out = 1 + max(attack.least_out for attack in attacks.values())
    least_in = max(attack.least_in for attack in attacks.values())
    kept = []
    for victim, pool in zip(victims, pools, strict=True):
        own = victim.audit_set
        _, members = pool.of(own.samples)
        num_in = members.sum(axis=0)
        keep = (len(members) - num_in >= least_out) & (num_in >= least_in + bool(least_in))
        scored = keep & ~own.is_known
        if min((scored & own.is_member).sum(), (scored & ~own.is_member).sum()) < SCORED:
            raise FedFacetError(
                f"Expected {SCORED} members and as many others that enough of the {len(members)} shadow federations held out, "
                f"but {_whose(victim)} has fewer: train more, with other partition.holdout_seed."
            )
        _, heard = pool.of(references := own.references[np.isin(own.references, pool.samples)])
        references = references[len(heard) - heard.sum(axis=0) >= least_out]
        kept.append(replace(victim, audit_set=replace(own.only(keep), references=references)))
    return kept


def _whose(victim: Victim) -> str:
    return "the server" if victim.client_id is None else f"client {victim.client_id}"

"""The models that are attacked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.clients.personal_memory import local_model
from fedfacet.data.audit_set import AuditSet, Members
from fedfacet.data.federated import FederatedData
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.runs.rerun import RoundAgain, round_again
from fedfacet.types import ClientUpdate, State


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A model, and the samples whose membership is to be told.

    Attributes:
        client_id: whose model it is; ``None`` for the server's.
        rate: which share of the channels it has.
        num_samples: how many samples it was trained on.
        model: its tensors.
        memory: what the client keeps, for what the client would say.
        audit_set: members and others.
    """

    client_id: int | None
    rate: float
    num_samples: int
    model: State
    memory: State
    audit_set: AuditSet


@dataclass(eq=False)
class KeepUpdates(Callback):
    """Keeps the updates of one round."""

    updates: list[ClientUpdate] = field(default_factory=list)
    needs_updates = True

    def on_updates(self, federation: Federation, updates: Sequence[ClientUpdate]) -> None:
        """Keep them."""
        self.updates = list(updates)


@contextmanager
def round_to_attack(run_dir: Path, round: int | None = None, *, trust: Sequence[str] = ()) -> Iterator[RoundAgain[KeepUpdates]]:
    """Run a round of a run again and keep what its clients came to; the arguments are those of ``round_again``.

    Raises:
        CheckpointError: as in ``round_again``.
        FedFacetError: as in ``build``.
    """
    with round_again(run_dir, round, lambda data: KeepUpdates(), trust=trust) as again:
        yield again


def server_victims(again: RoundAgain[KeepUpdates], members: Members) -> list[Victim]:
    """Return the global model after the round, attacked on the samples of those who have taken part in any round so far.

    Raises:
        FedFacetError: if nobody has, or if there are too few samples.
    """
    after, partition = again.federation.state, again.data.partition
    took_part = [client_id for client_id, times in enumerate(after.participation_counts.tolist()) if times]
    num_samples = sum(len(partition.indices[client_id]) for client_id in took_part)
    return [Victim(None, 1.0, num_samples, after.model, {}, members.of_server(again.data, took_part))]


def client_victims(
    again: RoundAgain[KeepUpdates], members: Members, moment: str, client_ids: Sequence[int] | None = None
) -> list[Victim]:
    """Return the models of clients whose updates arrived in the round, each attacked on its own samples.

    Args:
        again: the round.
        members: how audit sets are drawn.
        moment: ``"after_training"``, the model that a client sends, or ``"received"``, the one that it was sent.
        client_ids: whom; ``None`` for all whose samples suffice.

    Raises:
        FedFacetError: if a client that is named took no part in the round, or has too few samples, or nobody is left.
    """
    updates = {update.client_id: update for update in again.watcher.updates}
    if strangers := sorted(set(client_ids or ()) - updates.keys()):
        raise FedFacetError(
            f"Expected clients whose updates arrived in round {again.round}, {sorted(updates)}, but got {strangers[0]}: name "
            "one of them, or attack another round."
        )
    victims = []
    for client_id, update in sorted(updates.items()):
        if client_ids is None and not _suffices(again.data, members, client_id):
            continue
        if client_ids is None or client_id in client_ids:
            victims.append(_client_victim(again, members, moment, update))
    if not victims:
        sizes = [len(again.data.partition.indices[client_id]) for client_id in updates]
        raise FedFacetError(
            f"Expected a client with {members.least()} training samples or more, and as many others, to attack in round "
            f"{again.round} with members.min_known={members.min_known}, but the {len(updates)} clients whose updates arrived "
            f"have {min(sizes)} to {max(sizes)}: train with fewer clients or more samples, lower members.min_known, or attack "
            "another round."
        )
    return victims


def without_pairs(victims: Sequence[Victim]) -> list[Victim]:
    """Return victims of which it is not known that fair coins have chosen the members."""
    return [replace(victim, audit_set=replace(victim.audit_set, pairs=victim.audit_set.pairs[:0])) for victim in victims]


def _client_victim(again: RoundAgain[KeepUpdates], members: Members, moment: str, update: ClientUpdate) -> Victim:
    federation, before, client_id = again.federation, again.before, update.client_id
    sent, held = federation.sent(before, client_id), federation.find(Submodels)
    trained = moment == "after_training"
    return Victim(
        client_id=client_id,
        rate=1.0 if held is None else float(held.parts.rates(again.round)[client_id]),
        num_samples=len(again.data.partition.indices[client_id]),
        model=local_model(sent, update) if trained else state.clone(sent.model),
        memory=update.memory if trained else before.memory.get(client_id, {}),
        audit_set=members.of_client(again.data, client_id),
    )


def _suffices(data: FederatedData, members: Members, client_id: int) -> bool:
    try:
        members.of_client(data, client_id)
    except FedFacetError:
        return False
    return True

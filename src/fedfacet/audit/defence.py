"""What a run's training proves about samples, before anybody attacks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfacet.audit.victims import KeepUpdates, Victim
from fedfacet.clients.trainer import Clients
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.metrics.proven_epsilon import proven_epsilon
from fedfacet.runs.rerun import RoundAgain
from fedfacet.transforms import ClipAndNoise
from fedfacet.types import Broadcast, ClientTask


@dataclass(frozen=True, slots=True)
class Proof:
    """What noise proves of some victims.

    Attributes:
        epsilons: per victim; NaN where nothing is proven.
        why_not: why nothing is proven of some although there is noise, in a sentence; ``None`` where all is well.
    """

    epsilons: tuple[float, ...]
    why_not: str | None = None


def proof_of(again: RoundAgain[KeepUpdates], victims: Sequence[Victim], delta: float, *, received: bool = False) -> Proof:
    r"""Return for each victim an epsilon for which it is :math:`(\epsilon, \delta)`-private, towards whoever sees models alone.

    Neighbours differ by one sample of one client, which is there or has a gradient of 0. A client's model counts all rounds in
    which the client's update has arrived, the server's model those of the client with the largest epsilon. With
    ``privacy=dp_sgd`` every local step counts; with ``transforms=clip_and_noise`` every update, at half of its noise
    multiplier, since a sample may turn the update round; with both the smaller bound is taken. A client's model with layers of
    its own, which no update holds, is left to ``dp_sgd``. With ``privacy=central`` every round counts, at half of its noise
    multiplier too, for models that the server sends or keeps.

    ``received`` tells that clients' models are those before their training.
    """
    federation = again.federation
    clients = federation.engine.clients
    private = federation.find(DifferentialPrivacy)
    central = private.central if private is not None else None
    noised = central if central is not None and central.noise_multiplier else None
    if clients.privacy is None and not _noises(clients) and noised is None:
        return Proof((math.nan,) * len(victims))
    if sentence := _leak(federation, again.settings):
        return Proof((math.nan,) * len(victims), sentence)
    state = again.before if received else federation.state
    times: list[int] = state.participation_counts.tolist()
    check = federation.find(UpdateCheck)
    if check is not None and check.on_bad_update == "drop":  # an update that was dropped has been sent all the same
        times = [state.round] * len(times)
    keeps = bool(clients.personal) or clients.program.predict_hooks is not None
    try:
        of_server = math.inf
        if noised is not None:
            of_server = proven_epsilon(noised.noise_multiplier / 2, 1.0, state.round, delta)
        found = []
        for victim in victims:
            if victim.client_id is None:
                of_clients = max(_spent(clients, client_id, number, delta) for client_id, number in enumerate(times))
            else:
                of_clients = _spent(clients, victim.client_id, times[victim.client_id], delta, steps_alone=keeps)
            its_own = [of_server] if noised is not None and (victim.client_id is None or (received and not keeps)) else []
            bounds = [bound for bound in (of_clients, *its_own) if not math.isnan(bound)]
            found.append(min(bounds, default=math.nan))
    except FedFacetError as error:
        return Proof((math.nan,) * len(victims), f"epsilon_proven is empty: {error}")
    if any(map(math.isnan, found)):
        what = (
            "what clients keep to themselves is not noised" if keeps else "noise is added to what clients send, by the server"
        )
        return Proof(tuple(found), f"epsilon_proven is empty: {what}.")
    return Proof(tuple(found))


def _spent(clients: Clients, client_id: int, times: int, delta: float, *, steps_alone: bool = False) -> float:
    """Return the epsilon of a client that has trained so often; noise on updates does not count with ``steps_alone``."""
    noises = [] if steps_alone else _noises(clients)
    bounds = [proven_epsilon(transform.noise_multiplier / 2, 1.0, times, delta) for transform in noises]
    if (privacy := clients.privacy) is not None:
        rate = privacy.sampling_rate(len(clients.partition.indices[client_id]), clients.local.batch_size)
        steps = times * clients.num_steps(ClientTask(client_id, 1, 0, Broadcast({})))  # all that are planned
        bounds.append(proven_epsilon(privacy.noise_multiplier, rate, steps, delta))
    return min(bounds, default=math.nan)


def _noises(clients: Clients) -> list[ClipAndNoise]:
    return [one for one in clients.transforms if isinstance(one, ClipAndNoise) and one.noise_multiplier]


def _leak(federation: Federation, settings: Mapping[str, Any]) -> str | None:
    """Say by what other way than models samples have had an influence on the run."""
    metric = str((settings.get("scheduler") or {}).get("metric", "val/"))
    for leaks, what in (
        (bool(federation.state.disclosures), "clients have answered queries, which it does not count"),
        (
            federation.selector.observe is not None,
            "the selector has learnt from clients' losses, which have no noise",
        ),
        (not metric.startswith("val/"), f"the scheduler follows {metric}, which has no noise"),
    ):
        if leaks:
            return f"epsilon_proven is empty: {what}."
    return None

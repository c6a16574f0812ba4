"""Which parts go together: what a combination lacks, or would do wrong, is one sentence before the first round."""

import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedfacet.aggregators.base import Aggregator
from fedfacet.callbacks.base import Callback
from fedfacet.clients.federated_module import Logits
from fedfacet.clients.prediction import network_with_head
from fedfacet.clients.trainer import Clients
from fedfacet.devices.base import Devices
from fedfacet.errors import ConfigError
from fedfacet.mechanism import Mechanism
from fedfacet.models.base import NORM_STATISTICS, static_norms
from fedfacet.privacy.disclosure import UPDATE, DisclosurePolicy, kinds_sent
from fedfacet.query import Query
from fedfacet.schedulers import Scheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.termination import EnergyTermination, Termination
from fedfacet.types import (
    ASYNCHRONOUS,
    CENTRAL_NOISE,
    CLIENT_GRADIENTS,
    DEVICES,
    NOISE,
    OVERCOMMIT,
    PARTS,
    PAYMENTS,
    STORED_GRADIENTS,
    SUMMED_GRADIENTS,
    WAITING,
    WEIGHTED_DRAWS,
    ServerData,
)

log = logging.getLogger(__name__)

OPTIONAL = frozenset({ASYNCHRONOUS, WEIGHTED_DRAWS, SUMMED_GRADIENTS, PAYMENTS, STORED_GRADIENTS})
OPTIONAL |= {PARTS, NOISE, CENTRAL_NOISE, DEVICES, WAITING, OVERCOMMIT}
"""What a part may give though nobody needs it, since it costs nothing."""

_OTHER_HALF = "choose the other half of the method too (`method=` chooses both), or leave this half out."
_REMEDIES = {
    WEIGHTED_DRAWS: "choose a selector that draws clients by weights, such as uniform, or another participation.",
    DEVICES: "choose devices=lognormal or another option of `devices`, or another part.",
    PAYMENTS: "choose a selector that pays clients, such as fmore or cbim, or another termination.",
    SUMMED_GRADIENTS: "choose optimizer=sgd, without Nesterov's momentum and without dampening, or another method.",
    NORM_STATISTICS: "choose mechanisms=static_norm, or another model.norm.",
    STORED_GRADIENTS: "choose aggregator=lag (method=lag and method=lag_wk do), or leave this part out.",
}


def check_pairs(parts: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Refuse parts that do not go together.

    Every name that one part requires some part must provide, and the reverse; none may provide what another excludes.

    Args:
        parts: group -> part, each with ``provides``, ``requires`` and ``excludes`` where it has any. A group of several parts
            has ``group.0``, ``group.1``, ...
        choices: group -> the option that was chosen, for the message.

    Raises:
        ConfigError: naming the part, and what it lacks or cannot do with.
    """
    provides: dict[str, frozenset[str]] = {group: getattr(part, "provides", frozenset()) for group, part in parts.items()}
    requires: dict[str, frozenset[str]] = {group: getattr(part, "requires", frozenset()) for group, part in parts.items()}
    said = {group: _called(group, part, choices) for group, part in parts.items()}
    given, needed = (frozenset[str]().union(*sets.values()) for sets in (provides, requires))
    for group, names in requires.items():
        if lacking := sorted(names - given - {CLIENT_GRADIENTS}):  # see `check_full_batch`
            raise ConfigError(
                f"Expected a part that provides {lacking[0]!r}, which {said[group]} requires, but there is none: "
                f"{_REMEDIES.get(lacking[0], _OTHER_HALF)}"
            )
    for group, part in parts.items():
        for name, reason in getattr(part, "exclusions", getattr(part, "excludes", {})).items():
            if (other := next((other for other, names in provides.items() if name in names), None)) is not None:
                raise ConfigError(f"Expected {said[group]} to go with {said[other]}, but it {reason}.")
    for group, names in provides.items():
        if unused := sorted(names - needed - OPTIONAL):
            raise ConfigError(
                f"Expected a part that requires {unused[0]!r}, which {said[group]} provides, but there is none: {_OTHER_HALF}"
            )


def check_takes_parts(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse clients that cannot hold parts of the model.

    Raises:
        ConfigError: naming it.
    """
    for refused, what in (
        (bool(clients.program.frozen), "some of the model's weights are frozen: train them all"),
        (bool(clients.personal), "`personal` keeps layers of a shape that changes: choose personal=none"),
        (clients.local.keep_optimizer, "`local.keep_optimizer` keeps what belongs to other channels: choose false"),
        (
            not vars(type(clients.objective)).get("takes_parts", False),
            f"objective={names['objective']} may keep tensors of other channels: choose classification or masked",
        ),
    ):
        if refused:
            raise ConfigError(f"Expected parts that can do with clients that hold a part of the model, but {what}.")


def check_static_norm(clients: Clients) -> None:
    """Refuse layers of static batch norm that stay with clients: statistics are the global model's.

    Raises:
        ConfigError: naming one.
    """
    for name in static_norms(clients.program.module):
        if f"{name}.running_mean" in clients.personal:
            raise ConfigError(
                f"The layer `{name}` of static batch norm stays with clients, but mechanisms=static_norm gathers statistics of "
                "the global model: choose personal=none or another model.norm."
            )


def check_judged(clients: Clients, parts: Mapping[str, Any], server_data: ServerData | None, names: Mapping[str, Any]) -> None:
    """Refuse parts that judge models on samples, classes or groups that the server does not have.

    Args:
        clients: everybody's data.
        parts: ``"aggregator"``, ``"selector"`` and ``"callbacks.<name>"`` -> part.
        server_data: what the server has.
        names: group -> the option that was chosen, for the message.

    Raises:
        ConfigError: naming what is missing.
    """
    dataset = clients.dataset
    positive = getattr(parts["aggregator"], "positive_class", 0)
    if positive >= dataset.num_classes:
        raise ConfigError(
            f"Expected `aggregator.positive_class` to be one of the data set's {dataset.num_classes} classes, from 0, but got "
            f"{positive}: choose one of them."
        )
    needs = {group: part.judges() for group, part in parts.items() if part.judges is not None}
    needed = {group: need for group, need in needs.items() if need is not None}
    if not needed and server_data is not None:
        log.warning("The server's samples lie idle: aggregator=%s does not judge models.", names["aggregator"])
    for group, need in needed.items():
        name, other = (f"{group}={names[group]}", f"another {group}") if group in names else (group, "no such callback")
        groups = need in ("groups", "groups_of_sent")
        for refused, what in (
            (server_data is None, "the server has no samples: choose server_data=validation"),
            (
                groups and server_data is not None and not server_data.attributes,
                "the server does not know the attributes of its samples: give server_data.attributes=true",
            ),
            (groups and dataset.num_attributes < 2, "all samples have one attribute value: choose a data set with groups"),
            (
                bool(clients.personal),
                "`personal` keeps layers with the clients, without which no model is one: choose personal=none",
            ),
            (
                need == "gradients" and network_with_head(clients.program.module) is None,
                "the model has no `features` with a linear `head` on top: choose another model",
            ),
        ):
            if refused:
                raise ConfigError(f"Expected samples on which the server can judge models for {name}, but {what}, or {other}.")


def check_needs_logits(
    clients: Clients,
    parts: Mapping[str, Any],
    callbacks: Mapping[str, Callback],
    asked: Iterable[tuple[Query, str]],
) -> None:
    """Refuse parts that look at predicted classes where the module predicts none, and a module that nothing can measure.

    Args:
        clients: whose module was tried.
        parts: ``"aggregator=fedavg"`` and so on -> part, of those that may judge models.
        callbacks: name -> callback.
        asked: the questions of parts, and who puts each.

    Raises:
        ConfigError: naming the part.
    """
    program, targets = clients.program, clients.dataset.targets
    if program.logits is not Logits.NONE:
        return
    assert program.own is not None
    module = type(program.objective).__name__
    lacks = "predicts no classes" if targets is None else "has numbers to predict, not classes"
    who = [name for query, name in asked if query.needs_model or (targets is not None and "y" in query.reads)]
    who += [name for name, part in parts.items() if part.judges is not None and part.judges() is not None]
    who += [f"callbacks.{name}" for name, callback in callbacks.items() if callback.needs_logits]
    if who:
        raise ConfigError(
            f"Expected a module whose `forward` returns a logit per class for {who[0]}, but {module} {lacks}: leave that part "
            "out, or choose another."
        )


def check_transforms(clients: Clients) -> None:
    """Refuse transforms of clients that do not exist, and those that would act on what is on its way already.

    Raises:
        ConfigError: naming one.
    """
    number = clients.partition.num_clients
    for sent, transform in itertools.pairwise(clients.transforms):
        if sent.on_lines is not None:
            raise ConfigError(
                f"Expected {type(sent).__name__} to be the last transform, since it is the way to the server, but "
                f"{type(transform).__name__} comes after it: give them in the other order."
            )
    for transform in clients.transforms:
        if unknown := [client_id for client_id in transform.clients or () if client_id >= number]:
            raise ConfigError(
                f"Expected the `clients` of {type(transform).__name__} to be among the federation's {number}, from 0, but got "
                f"{unknown[0]}: choose others."
            )


def check_full_batch(clients: Clients, selector: ClientSelector, scheduler: Scheduler | None, names: Mapping[str, Any]) -> None:
    """Refuse parts that take an update for a client's gradient, times a learning rate, where it is something else.

    Raises:
        ConfigError: naming the part, and what stands against it.
    """
    parts: list[tuple[str, Any]] = [("selector", selector), *(("transforms", each) for each in clients.transforms)]
    name = next((_called(group, part, names) for group, part in parts if CLIENT_GRADIENTS in part.requires), None)
    if name is None:
        return
    local, most = clients.local, max(map(len, clients.partition.indices))
    per_epoch = math.ceil(most / local.batch_size)
    steps = local.amount * (1 if local.unit == "steps" else per_epoch)
    for refused, what in (
        (steps > 1, f"a client takes {steps} steps: choose local=full_batch"),
        (per_epoch > 1, f"a step takes {local.batch_size} of a client's {most} samples: choose local=full_batch"),
        (local.sampling != "without_replacement", "a step draws samples with replacement: choose local=full_batch"),
        (local.max_grad_norm is not None, "`local.max_grad_norm` clips gradients: leave it null"),
        (local.keep_optimizer, "`local.keep_optimizer` keeps momentum: leave it false"),
        (clients.privacy is not None, "`privacy` puts noise on gradients: choose privacy=none"),
        (scheduler is not None, f"the learning rate changes by scheduler={names.get('scheduler')}: choose scheduler=none"),
    ):
        if refused:
            raise ConfigError(f"Expected updates that are clients' gradients for {name}, but {what}, or another method.")


def check_devices(clients: Clients, devices: Devices, termination: Termination | None, names: Mapping[str, Any]) -> None:
    """Refuse devices whose numbers leave a part nothing to look at.

    Raises:
        ConfigError: naming the part.
    """
    batteries_K = devices.profiles(clients.partition.num_clients).battery_joules
    if isinstance(termination, EnergyTermination) and np.isinf(batteries_K).all():
        raise ConfigError(
            f"Expected devices with batteries for {_called('termination', termination, names)}, but all are on the "
            "mains: give `devices.battery_joules`, or choose another termination."
        )
    if not (clients.facts.parameters or clients.facts.buffers):
        raise ConfigError(
            "Expected clients that send something where rounds take time on `devices`, but all layers stay with them, so that "
            "no server waits: choose devices=none."
        )


def questions(
    selector: ClientSelector,
    aggregator: Aggregator,
    callbacks: Mapping[str, Callback],
    mechanisms: Sequence[Mechanism],
    names: Mapping[str, Any],
) -> list[tuple[Query, str]]:
    """Return the questions that parts are known to put, and who puts each; ``names`` has the option of each group."""
    of_callbacks = [(callback.question(), f"callbacks.{name}") for name, callback in callbacks.items()]
    reported = aggregator.report() if aggregator.report is not None else None
    put = [
        *((query, _called("selector", selector, names)) for query in vars(selector).values()),
        (reported, _called("aggregator", aggregator, names)),
        *of_callbacks,
        *((query, type(one).__name__) for one in mechanisms for query in getattr(one, "__dict__", {}).values()),
    ]
    return [(query, who) for query, who in put if isinstance(query, Query)]


def check_disclosed(clients: Clients, asked: Iterable[Query], policy: DisclosurePolicy, names: Mapping[str, Any]) -> None:
    """Refuse queries and methods that tell the server more than a policy allows, or read what it hides.

    Raises:
        ConfigError: naming the part.
        DisclosureError: naming the query.
    """
    for query in asked:
        policy.check(query)
    loss = getattr(clients.objective, "loss", None)
    correction = getattr(clients.objective, "correction", None)
    for group, part in (("objective", clients.objective), ("loss", getattr(loss, "func", loss)), ("correction", correction)):
        if policy.hides_attributes and getattr(part, "reads_attributes", False):
            raise ConfigError(
                f"Expected clients that know the attributes of their samples for {_called(group, part, names)}, but "
                "under this `disclosure` nobody does: choose another one, or a disclosure whose clients know them."
            )
    of_correction: frozenset[str] = getattr(correction, "provides", frozenset()) - OPTIONAL
    of_objective: frozenset[str] = getattr(clients.objective, "provides", frozenset()) - OPTIONAL - of_correction
    for group, part, sent in (("correction", correction, of_correction), ("objective", clients.objective, of_objective)):
        if beyond := sorted(set(kinds_sent(part, sent).values()) - {*policy.allows, UPDATE}):
            raise ConfigError(
                f"Expected clients that send along no more than `disclosure` allows ({', '.join(policy.allows) or 'nothing'}), "
                f"but {_called(group, part, names)} sends what is of kind {beyond[0]}: choose another one, or another "
                "disclosure."
            )


def _called(group: str, part: object, names: Mapping[str, Any]) -> str:
    kind = group.partition(".")[0]
    name = names.get(kind, "none")  # a part beside an option for none is an object or was added by its class
    return f"{kind}={type(part).__name__ if name == 'none' else name}"

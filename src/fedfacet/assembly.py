"""Parts -> Federation, without Hydra: ``federate`` takes real objects, and ``build.py`` puts what it made together here."""

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfacet import rng
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.capacities.base import Capacity
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.private_gradients import PrivateGradients
from fedfacet.clients.program import Clients
from fedfacet.clients.queries.base import Query
from fedfacet.clients.stacked_training import complaint
from fedfacet.corrections.base import Correction
from fedfacet.data.federated import FederatedData
from fedfacet.engines.base import Engine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory
from fedfacet.participation.base import Participation
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.schedulers.base import Scheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.submodels.base import Submodel
from fedfacet.submodels.parts import Parts
from fedfacet.transforms.base import UpdateTransform
from fedfacet.transforms.clip_and_noise import ClipAndNoise
from fedfacet.types import SUMMED_GRADIENTS, WEIGHTED_DRAWS, ChannelPlan, Partition

OPTIONAL = frozenset({WEIGHTED_DRAWS, SUMMED_GRADIENTS})
"""What a part may give though nobody needs it, since it costs nothing."""

_OTHER_HALF = "choose the other half of the method too (`method=` chooses both), or leave this half out."
_REMEDIES = {
    WEIGHTED_DRAWS: "choose a selector that draws clients by weights, such as uniform, or another participation.",
    SUMMED_GRADIENTS: "choose optimizer=sgd, without Nesterov's momentum and without dampening, or another method.",
}


def federate(
    data: FederatedData,
    model: nn.Module | L.LightningModule,
    *,
    optimizer: OptimizerFactory | None = None,
    local: LocalTraining | None = None,
    transforms: Sequence[UpdateTransform] = (),
    privacy: DPSGD | None = None,
    personal: Set[str] = frozenset(),
    engine: Engine | None = None,
    selector: ClientSelector | None = None,
    aggregator: Aggregator | None = None,
    participation: Participation | None = None,
    scheduler: Scheduler | None = None,
    capacity: Capacity | None = None,
    submodel: Submodel | None = None,
    disclosure: DisclosurePolicy | None = None,
    callbacks: Mapping[str, Callback] | None = None,
    rounds: int = 10,
    cohort_size: int | None = None,
    seed: int = 0,
) -> Federation:
    """Return a federation of real objects; ``run_round`` runs a round and returns its result, ``fit`` runs all of them.

    Args:
        data: who holds what, as ``deal`` returns it.
        model: a module that maps inputs to logits, trained by cross entropy; or a LightningModule that says itself what its
            ``training_step`` and its optimizer are. Its weights are the initial global model.
        optimizer: makes the optimizer of a plain module, and of queries that train something; SGD with lr 0.01 by default.
        local: how much a client trains in a round; an epoch in batches of 28 by default.
        transforms: what happens to an update before it leaves the client.
        privacy: how clients' gradients are made private; ``None`` where they are not.
        personal: names of the model's tensors that stay with the clients.
        engine: runs the clients; one after another by default.
        selector: says who takes part; by default clients are drawn uniformly.
        aggregator: makes the next model; FedAvg by default.
        participation: says who is able to take part; by default everybody, always.
        scheduler: of the clients' learning rate; ``None`` for a constant one.
        capacity: how large a part of a plain module each client trains; ``None`` for all of it.
        submodel: which part; goes with ``capacity``.
        disclosure: what clients may be asked for, and whether they know attributes; anything, and they do, by default.
        callbacks: name -> callback; by default the global model is measured on validation and test set after every round.
        rounds: how many rounds ``fit`` runs, 1 or larger.
        cohort_size: how many clients take part in a round; all of them by default.
        seed: of selection and local training, 0 or larger.

    Raises:
        FedFacetError, ValueError: with one sentence, where parts do not fit.

    Example:
        >>> import torch
        >>> from sklearn.datasets import load_breast_cancer
        >>> from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> data = deal(dataset_from_arrays(x, y), IIDPartitioner(num_clients=5))
        >>> federation = federate(data, torch.nn.Sequential(torch.nn.LayerNorm(30), torch.nn.Linear(30, 2)))
        >>> sorted(federation.run_round().arrived)
        [0, 1, 2, 3, 4]
    """
    engine = engine if engine is not None else SequentialEngine()
    optimizer = optimizer if optimizer is not None else partial(torch.optim.SGD, lr=0.01)
    device = device_of(engine.device)
    memory_format = getattr(torch, usual_memory_format(device))
    objective = model if isinstance(model, L.LightningModule) else ClassificationObjective(model, optimizer=optimizer)
    parts = parts_of(capacity, submodel, model, data.partition, seed)
    smaller = [ClassificationObjective(part, optimizer=optimizer) for part in smaller_models(parts, model)]
    if callbacks is None:
        weights, num_attributes = data.group_weights, data.dataset.num_attributes
        callbacks = {"evaluate": Evaluate(splits=data.splits, group_weights=weights, num_attributes=num_attributes)}
    clients = Clients(
        objective=objective.to(device=device, memory_format=memory_format),
        optimizer=optimizer,
        dataset=data.dataset,
        partition=data.partition,
        local=local if local is not None else LocalTraining(),
        transforms=transforms,
        device=device,
        memory_format=memory_format,
        personal=personal,
        other_objectives=[part.to(device=device, memory_format=memory_format) for part in smaller],
        privacy=privacy,
        hides_attributes=disclosure is not None and disclosure.hides_attributes,
    )
    return assemble(
        clients,
        engine=engine,
        selector=selector if selector is not None else UniformSelector(),
        aggregator=aggregator if aggregator is not None else FedAvg(),
        participation=participation,
        scheduler=scheduler,
        parts=parts,
        disclosure=disclosure,
        callbacks=callbacks,
        rounds=rounds,
        cohort_size=cohort_size if cohort_size is not None else data.partition.num_clients,
        seed=seed,
    )


def assemble(
    clients: Clients,
    *,
    engine: Engine,
    selector: ClientSelector,
    aggregator: Aggregator,
    participation: Participation | None,
    parts: Parts | None = None,
    disclosure: DisclosurePolicy | None = None,
    choices: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """Hold parts to each other and put them together.

    Args:
        clients: everybody's data and programs.
        engine: as in ``Federation``; it is set up here.
        selector: as in ``Federation``.
        aggregator: as in ``Federation``.
        participation: as in ``Federation``.
        parts: as in ``Federation``.
        disclosure: as in ``Federation``; ``clients`` hide attributes if it says so.
        choices: group -> the option that was chosen, for messages.
        settings: the other arguments of ``Federation``.

    Raises:
        ConfigError: if a half of a method has no other half, if a query asks for what the model does not have, or if a part
            cannot do with clients that hold parts of the model, or with noise.
    """
    chosen = {
        "correction": getattr(clients.objective, "correction", None),  # first: its objective gives and needs what it does
        "objective": clients.objective,
        "aggregator": aggregator,
        "selector": selector,
        "participation": participation,
    }
    names = {group: type(part).__name__ for group, part in chosen.items()} | dict(choices or {})
    check_pairs(chosen, names)
    if parts is not None:
        check_takes_parts(clients, aggregator, selector, names)
    check_noised(clients, names)
    if clients.privacy is not None:
        check_private(clients, names)
    if clients.hides_attributes:
        check_unaware(clients, names)
    for query in vars(selector).values():
        if isinstance(query, Query):
            if disclosure is not None:
                disclosure.check(query)
            query.check(clients.program.module)
    engine.setup(clients)
    return Federation(
        facts=clients.facts,
        partition_digest=clients.partition.digest,
        engine=engine,
        selector=selector,
        aggregator=aggregator,
        participation=participation,
        parts=parts,
        disclosure=disclosure,
        **settings,
    )


def parts_of(
    capacity: Capacity | None, submodel: Submodel | None, model: nn.Module, partition: Partition, seed: int
) -> Parts | None:
    """Return which part of a model each client holds; ``None`` where everybody holds all of it.

    Raises:
        ConfigError: if only one of capacity and submodel is there, or if the model does not say which channels it has.
        ValueError: if the capacity does not suit the clients.
    """
    if capacity is None and submodel is None:
        return None
    if capacity is None or submodel is None:
        there, missing = ("submodel", "capacity") if capacity is None else ("capacity", "submodel")
        raise ConfigError(
            f"Expected `capacity` and `submodel` together, but got {there} alone: choose a {missing} other than whole (such as "
            f"{'capacity=largest' if missing == 'capacity' else 'submodel=heterofl'}), or {there}=whole."
        )
    plan = getattr(model, "channel_plan", None)
    if not isinstance(plan, ChannelPlan):
        raise ConfigError(
            f"Expected a model that can be cut, with `channel_plan` and `narrowed`, but {type(model).__name__} has none: "
            "choose scaler_cnn, small_cnn or resnet8, or capacity=whole submodel=whole."
        )
    parts = Parts(submodel, capacity, plan, np.array(list(map(len, partition.indices))), seed)
    return None if not capacity.every_round and bool((parts.rates(1) == 1).all()) else parts


def smaller_models(parts: Parts | None, model: nn.Module) -> list[nn.Module]:
    """Return a model for each shape that weak clients hold."""
    if parts is None:
        return []
    sizes = [parts.sizes(rate) for rate in parts.levels]
    different = [one for number, one in enumerate(sizes) if one not in sizes[:number] and one != dict(parts.plan.sizes)]
    return [model.narrowed(one) for one in different]  # type: ignore[operator]


def check_takes_parts(clients: Clients, aggregator: Aggregator, selector: ClientSelector, names: Mapping[str, Any]) -> None:
    """Refuse what cannot do with clients that hold parts of the model.

    Raises:
        ConfigError: naming it.
    """
    for refused, what in (
        (not aggregator.entrywise, f"aggregator={names['aggregator']} needs whole models: choose fedavg, fedavgm or fednova"),
        (selector.needs_updates is not None, f"selector={names['selector']} compares whole updates: choose uniform"),
        (bool(clients.personal), "`personal` keeps layers of a shape that changes: choose personal=none"),
        (clients.local.keep_optimizer, "`local.keep_optimizer` keeps what belongs to other channels: choose false"),
        (
            type(clients.objective) is not ClassificationObjective,
            f"objective={names['objective']} may keep tensors of other channels: choose classification",
        ),
    ):
        if refused:
            raise ConfigError(f"Expected parts that can do with clients that hold a part of the model, but {what}.")


def check_noised(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse noise on updates where clients send something else besides that goes into the model.

    Raises:
        ConfigError: naming it.
    """
    if not any(isinstance(transform, ClipAndNoise) and transform.noise_multiplier for transform in clients.transforms):
        return
    sent = [name for program in clients.programs for name in program.buffers if name not in clients.personal]
    extras = sorted(getattr(clients.objective, "gives", frozenset()) - OPTIONAL)
    for refused, what in (
        (sent, f"the model's running statistics, {sent[0]!r} the first of them: choose a model without" if sent else ""),
        (extras, f"{extras[0]!r}, by objective={names['objective']} or its correction: choose another" if extras else ""),
    ):
        if refused:
            raise ConfigError(
                "Expected clients that send nothing for the model besides what transforms=clip_and_noise covers, but they send "
                f"{what}, or noise_multiplier=0."
            )


def check_private(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse what does not go with gradients that are taken sample by sample, clipped and noised.

    Raises:
        ConfigError: naming it.
    """
    correction = getattr(clients.objective, "correction", None)
    modules = [module for program in clients.programs for module in program.module.modules()]
    sees_batch = any(isinstance(module, _BatchNorm) or getattr(module, "sees_batch", False) for module in modules)
    for refused, what in (
        (
            type(clients.objective) is not ClassificationObjective,
            f"objective={names['objective']} may use samples in other ways: choose classification",
        ),
        (
            correction is not None and type(correction) is not Correction,
            f"correction={names['correction']} adds a term that is no sample's: choose none",
        ),
        (sees_batch, "the model normalises samples by their batch: choose one with GroupNorm (scaler_cnn, resnet50_gn)"),
        (
            clients.local.max_grad_norm is not None,
            "`local.max_grad_norm` clips gradients of batches: leave it null, and set privacy.max_grad_norm",
        ),
        (clients.compile, "`compile` is set, and compiled models have gradients of batches: leave it false"),
    ):
        if refused:
            raise ConfigError(f"Expected parts that go with privacy=dp_sgd, but {what}.")
    _try_private(clients)


def _try_private(clients: Clients) -> None:
    """Take the gradients of two samples, so that a model is refused now rather than at the first client."""
    assert clients.privacy is not None
    batch = clients.dataset.batch(clients.partition.indices[0][[0, -1]], clients.device, clients.memory_format)
    with rng.forked(0, "private-trial", device=clients.device):
        for program in clients.programs:
            program.train(True)
            try:
                PrivateGradients(program, clients.privacy).clipped_sum(batch)
            except RuntimeError as error:
                raise ConfigError(
                    f"Expected a model whose gradients can be taken sample by sample for privacy=dp_sgd, but torch refuses "
                    f"({complaint(error)}): choose another model, or leave out layers that draw random numbers "
                    "(model.stochastic_depth=0)."
                ) from None


def check_unaware(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse an objective or a loss that reads attributes, where clients do not know them.

    Raises:
        ConfigError: naming it.
    """
    loss = getattr(clients.objective, "loss", None)
    for group, part in (("objective", clients.objective), ("loss", getattr(loss, "func", loss))):
        if getattr(part, "reads_attributes", False):
            raise ConfigError(
                f"Expected clients that know the attributes of their samples for {group}="
                f"{names.get(group, type(part).__name__)}, but under this `disclosure` nobody does: choose another one, or a "
                "disclosure whose clients know them."
            )


def check_pairs(parts: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Refuse a method of which only a half was chosen: every name that one part needs some part must give, and the reverse.

    Args:
        parts: group -> part, each with ``gives`` and ``needs`` where it has any.
        choices: group -> the option that was chosen, for the message.

    Raises:
        ConfigError: naming the half that is there, and what it lacks.
    """
    gives: dict[str, frozenset[str]] = {group: getattr(part, "gives", frozenset()) for group, part in parts.items()}
    needs: dict[str, frozenset[str]] = {group: getattr(part, "needs", frozenset()) for group, part in parts.items()}
    given, needed = (frozenset[str]().union(*sets.values()) for sets in (gives, needs))
    for group, names in needs.items():
        if lacking := sorted(names - given):
            raise ConfigError(
                f"Expected a part that gives {lacking[0]!r}, which {group}={choices.get(group)} needs, but there is none: "
                f"{_REMEDIES.get(lacking[0], _OTHER_HALF)}"
            )
    for group, names in gives.items():
        if unused := sorted(names - needed - OPTIONAL):
            raise ConfigError(
                f"Expected a part that needs {unused[0]!r}, which {group}={choices.get(group)} gives, but there is none: "
                f"{_OTHER_HALF}"
            )


def check_optimizer(optimizer: OptimizerFactory, model: nn.Module) -> None:
    """Make an optimizer for once, so that it refuses its settings now rather than at the first client."""
    try:
        optimizer(model.parameters())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected settings that the `optimizer` accepts, but got this: {error}.") from None


def device_of(name: str) -> torch.device:
    """Return a device of this machine by its name; ``"auto"`` is an accelerator if there is one.

    Raises:
        ConfigError: if the machine has no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Expected `engine.device` to name a device of this machine, but got {name!r} ({str(error).splitlines()[0]}): give "
            "auto, cpu, cuda or cuda:N."
        ) from None
    return device


def usual_memory_format(device: torch.device) -> str:
    """Return where the channels of images lie: last on a CPU, whose convolutions are 1.2 to 1.6 times as fast so (measured)."""
    return "channels_last" if device.type == "cpu" else "contiguous_format"

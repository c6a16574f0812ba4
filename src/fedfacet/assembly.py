"""Parts -> Federation, without Hydra: ``federate`` takes real objects, and ``build.py`` puts what it made together here."""

import inspect
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from fedfacet.accounting import check_room
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.base import Callback, check_callbacks
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.callbacks.module_metrics import with_own_metrics
from fedfacet.capacities import Capacity
from fedfacet.client_setup import clock_of, device_of, logged_values, parts_of, smaller_models, usual_memory_format
from fedfacet.clients.hooks import check_objective, warn_of_optimizer, warn_of_reuse
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.network_trial import check_network, check_weights
from fedfacet.clients.trainer import Clients
from fedfacet.compatibility import (
    check_devices,
    check_disclosed,
    check_full_batch,
    check_judged,
    check_needs_logits,
    check_pairs,
    check_static_norm,
    check_takes_parts,
    check_transforms,
    questions,
)
from fedfacet.data.federated import FederatedData
from fedfacet.devices.base import Devices
from fedfacet.engines.base import Engine
from fedfacet.engines.distributed import DistributedEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.federation import Federation
from fedfacet.history import TrackedFederation
from fedfacet.mechanism import Mechanism
from fedfacet.mechanisms import mechanisms_of
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.models.base import static_norms
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory
from fedfacet.participation import Participation
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.privacy_gate import account, check_noised, check_private, with_mechanisms
from fedfacet.schedulers import Scheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.submodels.base import Submodel
from fedfacet.submodels.parts import Parts
from fedfacet.summing import SummedUpdates, check_summed, sums_updates
from fedfacet.termination import Termination
from fedfacet.transforms import UpdateTransform
from fedfacet.types import ServerData


def federate(  # noqa: PLR0913  # a keyword for each part of a federation, all but two with a default
    data: FederatedData,
    model: nn.Module | L.LightningModule,
    *,
    optimizer: OptimizerFactory | None = None,
    local: LocalTraining | None = None,
    transforms: Sequence[UpdateTransform] = (),
    privacy: Privacy | None = None,
    personal: Set[str] = frozenset(),
    engine: Engine | None = None,
    selector: ClientSelector | None = None,
    aggregator: Aggregator | None = None,
    participation: Participation | None = None,
    scheduler: Scheduler | None = None,
    devices: Devices | None = None,
    termination: Termination | None = None,
    capacity: Capacity | None = None,
    submodel: Submodel | None = None,
    disclosure: DisclosurePolicy | None = None,
    callbacks: Mapping[str, Callback] | None = None,
    mechanisms: Sequence[Mechanism] = (),
    rounds: int = 10,
    cohort_size: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
) -> TrackedFederation:
    """Return a federation of real objects; ``run_round`` runs a round and returns its result, ``fit`` runs all of them.

    Args:
        data: who holds what, as ``deal`` returns it.
        model: a module that maps inputs to logits, trained by cross entropy; or a LightningModule that says itself what its
            ``training_step`` and its optimizer are. Its weights are the initial global model, and training
            changes them, so a second federation needs a module of its own.
        optimizer: makes the optimizer of a plain module, and of queries that train something; SGD with lr 0.01 by default. A
            LightningModule has an optimizer of its own.
        local: how much a client trains in a round; an epoch in batches of 28 by default.
        transforms: what happens to an update before it leaves the client.
        privacy: ``DPSGD`` at the clients or ``CentralDP`` at the server; ``None`` for no noise.
        personal: names of the model's tensors that stay with the clients.
        engine: runs the clients; one after another by default.
        selector: says who takes part; by default clients are drawn uniformly.
        aggregator: makes the next model; FedAvg by default.
        participation: says who is able to take part; by default everybody, always.
        scheduler: of the clients' learning rate; ``None`` for a constant one.
        devices: what clients run on, by which rounds take simulated seconds; nothing by default.
        termination: what ends ``fit`` before all rounds are done; by default nothing.
        capacity: how large a part of a plain module each client trains; ``None`` for all of it.
        submodel: which part; goes with ``capacity``.
        disclosure: what clients may be asked for, and whether they know attributes; anything, and they do, by default.
        callbacks: name -> callback; by default the global model is measured on validation and test set after every round.
        mechanisms: what else takes part in a round, each a ``Mechanism`` of yours; none by default.
        rounds: how many rounds ``fit`` runs, 1 or larger.
        cohort_size: how many clients take part in a round; all of them by default.
        seed: of selection and local training, 0 or larger.
        folder: in which ``fit`` keeps the run, with the files of a command's run; the same script run again resumes it. By
            default nothing is kept.

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
    listed = mechanisms if isinstance(mechanisms, Sequence) else ()
    for name, part, kind in (
        ("model", model, nn.Module),
        ("local", local, LocalTraining),
        ("engine", engine, Engine),
        ("selector", selector, ClientSelector),
        ("aggregator", aggregator, Aggregator),
        ("scheduler", scheduler, Scheduler),
        ("mechanisms", mechanisms, Sequence),
        *((f"mechanisms[{number}]", one, Mechanism) for number, one in enumerate(listed)),
    ):
        if part is not None and not isinstance(part, kind):
            came = f"the class {part.__name__}" if isinstance(part, type) else repr(part)
            raise TypeError(f"Expected `{name}` to be a {kind.__name__}, but got {came}: give an object of such a class.")
    if not isinstance(data, FederatedData):
        remedy = "give the samples to clients by `deal(dataset_from_arrays(x, y), IIDPartitioner(num_clients=10))`"
        if isinstance(data, L.LightningDataModule):
            remedy = (
                "call its `setup`, and give the data sets of its loaders to `deal(dataset_from_torch(train, test=test), "
                "IIDPartitioner(num_clients=10))`"
            )
        raise TypeError(f"Expected `data` to say which client has which samples, but got {type(data).__name__}: {remedy}.")
    check_weights(model)
    warn_of_reuse(model)
    engine = engine if engine is not None else SequentialEngine()
    if optimizer is not None and isinstance(model, L.LightningModule):
        warn_of_optimizer(model)
    optimizer = optimizer if optimizer is not None else partial(torch.optim.SGD, lr=0.01)
    device = device_of(engine.device)
    memory_format = getattr(torch, usual_memory_format(device))
    objective = model if isinstance(model, L.LightningModule) else ClassificationObjective(model, optimizer=optimizer)
    parts = parts_of(capacity, submodel, model, data.partition, seed)
    smaller = [ClassificationObjective(part, optimizer=optimizer) for part in smaller_models(parts, model)]
    if not isinstance(callbacks, Mapping | None):
        raise TypeError(
            f"Expected `callbacks` to map names to callbacks, but got {type(callbacks).__name__}: name each of them, as in "
            '{"fairness": Fairness(...)}.'
        )
    if callbacks is None:
        callbacks = {"evaluate": Evaluate(data=data)}
    clients = Clients(
        objective=objective.to(device=device, memory_format=memory_format),
        optimizer=optimizer,
        dataset=data.dataset,
        partition=data.partition,
        held_out=data.held_out_clients.partition if data.held_out_clients is not None else None,
        local_holdout=data.holdout_partition,
        local=local if local is not None else LocalTraining(),
        transforms=transforms,
        device=device,
        memory_format=memory_format,
        personal=personal,
        other_objectives=[part.to(device=device, memory_format=memory_format) for part in smaller],
        privacy=privacy if isinstance(privacy, DPSGD) else None,
        server_privacy=privacy if isinstance(privacy, CentralDP) else None,
        hides_attributes=disclosure is not None and disclosure.hides_attributes,
    )
    selector = selector if selector is not None else UniformSelector()
    aggregator = aggregator if aggregator is not None else FedAvg()
    cohort_size = cohort_size if cohort_size is not None else data.partition.num_clients
    run_folder = None
    if folder is not None:
        from fedfacet.run_folder import RunFolder  # Hydra and what else a run's files need load here

        given = locals()
        run_folder = RunFolder(clients, {name: given[name] for name in inspect.signature(federate).parameters})
        callbacks = run_folder.callbacks
    federation: TrackedFederation = assemble(  # type: ignore[assignment]
        clients,
        engine=engine,
        selector=selector,
        aggregator=aggregator,
        participation=participation,
        scheduler=scheduler,
        devices=devices,
        termination=termination,
        parts=parts,
        disclosure=disclosure,
        server_data=data.server,
        privacy=privacy if isinstance(privacy, CentralDP) else None,
        callbacks=callbacks,
        mechanisms=mechanisms,
        rounds=rounds,
        cohort_size=cohort_size,
        seed=seed,
        kind=TrackedFederation,
    )
    federation.track(run_folder)
    return federation


def assemble(  # noqa: PLR0913  # a keyword for each group of a configuration
    clients: Clients,
    *,
    engine: Engine,
    selector: ClientSelector,
    aggregator: Aggregator,
    participation: Participation | None,
    scheduler: Scheduler | None = None,
    parts: Parts | None = None,
    disclosure: DisclosurePolicy | None = None,
    server_data: ServerData | None = None,
    privacy: CentralDP | None = None,
    devices: Devices | None = None,
    termination: Termination | None = None,
    mechanisms: Sequence[Mechanism] = (),
    cohort_size: int,
    choices: Mapping[str, Any] | None = None,
    partition_digest: str | None = None,
    rounds: int,
    seed: int,
    callbacks: Mapping[str, Callback] | None = None,
    on_bad_update: str = "raise",
    kind: type[Federation] = Federation,
) -> Federation:
    """Hold parts to each other and put them together.

    Args:
        clients: everybody's data and programs.
        engine: as in ``Federation``; it is set up here.
        selector: as in ``Federation``.
        aggregator: as in ``Federation``.
        participation: says who is able to take part and how a client's round may end; ``None`` for everybody, always.
        scheduler: of the clients' learning rate; ``None`` for a constant one.
        parts: which part of the model each client holds; ``None`` for all of it.
        disclosure: what clients may be asked for; ``None`` for anything. ``clients`` hide attributes if it says so.
        server_data: the samples that the server owns; ``None`` for none.
        privacy: the noise that the server adds to the sum of updates; ``None`` for none.
        devices: what clients run on; ``None`` for nothing that takes time.
        termination: what ends ``fit`` before all rounds are done; ``None`` for nothing.
        mechanisms: as in ``Federation``, besides those that follow from the other arguments.
        cohort_size: as in ``Federation``.
        choices: group -> the option that was chosen, for messages.
        partition_digest: saved so that a checkpoint knows what it belongs to; by default that of the clients' partition.
        rounds: as in ``Federation``.
        seed: as in ``Federation``.
        callbacks: name -> callback, called in this order.
        on_bad_update: ``"raise"`` or ``"drop"`` an update that is malformed or holds NaN or infinity.
        kind: the class of the federation.

    Raises:
        ConfigError: if the network does not return a logit per class, if a half of a method has no other half, if a query asks
            for what the model does not have, or if a part cannot do with clients that hold parts of the model, with noise, with
            devices, or with what the server has.
    """
    chosen = {
        "correction": getattr(clients.objective, "correction", None),  # first: its objective gives and needs what it does
        "objective": clients.objective,
        "aggregator": aggregator,
        "selector": selector,
        "participation": participation,
        "termination": termination,
        **{f"transforms.{number}": transform for number, transform in enumerate(clients.transforms)},
        "devices": devices,
        "capacity": parts.capacity if parts is not None else None,
        "privacy": clients.privacy or privacy,
        "model": next(iter(static_norms(clients.program.module).values()), None),
        **{f"mechanisms.{one.slot or number}": one for number, one in enumerate(mechanisms)},
    }
    names = {group: type(part).__name__ for group, part in chosen.items()} | dict(choices or {})
    check_objective(clients.objective)
    check_network(clients, aggregator.buffers)
    check_pairs(chosen, names)
    if parts is not None:
        check_takes_parts(clients, names)
    check_transforms(clients)
    check_full_batch(clients, selector, scheduler, names)
    check_noised(clients, names)
    if clients.privacy is not None:
        check_private(clients, names)
    check_callbacks(callbacks or {})
    callbacks = with_own_metrics(clients, callbacks or {})
    check_static_norm(clients)
    asked = questions(selector, aggregator, callbacks, mechanisms, names)
    accounting = account(clients, privacy, aggregator, selector, scheduler, cohort_size, names, asked)
    accounting = with_mechanisms(accounting, mechanisms)
    watching = {f"callbacks.{name}": callback for name, callback in callbacks.items()}
    check_judged(clients, {"aggregator": aggregator, "selector": selector, **watching}, server_data, names)
    if devices is not None:
        check_devices(clients, devices, termination, names)
    if disclosure is not None:
        check_disclosed(clients, [query for query, _ in asked], disclosure, names)
    judging = {f"{group}={names[group]}": part for group, part in (("aggregator", aggregator), ("selector", selector))}
    check_needs_logits(clients, judging, callbacks, asked)
    for query, _ in asked:
        query.check(clients.program.module)
    if sums_updates(engine):
        check_summed(aggregator, selector, callbacks, parts, privacy, mechanisms, names)
    clock = clock_of(devices, clients, aggregator, cohort_size) if devices is not None else None
    clients.needs[:] = clock.needs() if clock is not None else []  # before the engine sends clients to other processes
    engine.setup(clients)
    evaluation = ServerEvaluation(server_data, engine, aggregator, selector) if server_data is not None else None
    made = mechanisms_of(
        scheduler=scheduler,
        participation=participation,
        disclosure=disclosure,
        accounting=accounting,
        clock=clock,
        parts=parts,
        evaluation=evaluation,
        termination=termination,
    )
    made += logged_values(clients, is_private=bool(clients.privacy or privacy or disclosure))
    facts = clients.facts if partition_digest is None else replace(clients.facts, partition_digest=partition_digest)
    if isinstance(engine, DistributedEngine) and sums_updates(engine):
        made.append(SummedUpdates(engine, aggregator, facts, on_bad_update))
    else:
        made.append(UpdateCheck(on_bad_update))
    if callbacks:
        made.append(Callbacks(callbacks))
    federation = kind(
        facts=facts,
        engine=engine,
        selector=selector,
        aggregator=aggregator,
        mechanisms=[*made, *aggregator.mechanisms(clock, cohort_size, clients.partition.num_clients), *mechanisms],
        rounds=rounds,
        cohort_size=cohort_size,
        seed=seed,
    )
    if accounting is not None:
        check_room(accounting, federation.state)
    return federation

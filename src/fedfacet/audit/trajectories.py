"""Loss trajectories: what students say of samples while they learn from a model; see ``Trajectory``."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedfacet import rng
from fedfacet.attacks import Scores, Trajectories, Trajectory, losses_of
from fedfacet.audit.shadows import Shadows, alone, keep, kept, key_of, shadow_clients, trained, weights_of
from fedfacet.audit.victims import KeepUpdates, Victim
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.engines.base import Engine
from fedfacet.errors import FedFacetError
from fedfacet.objectives.distillation import SAMPLES, TEACHER, DistillationObjective
from fedfacet.runs.rerun import RoundAgain
from fedfacet.types import Partition, State

LEAST = 40
"""Samples of other clients that are needed at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """What an attacker of one client does with the other clients' samples: positions in the data set, each ascending.

    Attributes:
        members: a quarter, on which the shadow model is trained.
        others: a quarter that it never sees.
        distilled: the rest, on which students learn.
    """

    members: NDArray[np.int64]
    others: NDArray[np.int64]
    distilled: NDArray[np.int64]

    @property
    def judged(self) -> NDArray[np.int64]:
        """Members and others of the shadow model."""
        return np.concatenate([self.members, self.others])


def split_for(partition: Partition, client_id: int, seed: int) -> Split:
    """Deal the samples of all clients but one.

    Raises:
        FedFacetError: if they have too few.
    """
    rest = [own for other, own in enumerate(partition.indices) if other != client_id]
    samples = np.concatenate(rest) if rest else np.empty(0, np.int64)
    if len(samples) < LEAST:
        raise FedFacetError(
            f"Expected {LEAST} samples or more of clients other than {client_id} for attack=trajectory, but got "
            f"{len(samples)}: leave that attack out."
        )
    order, quarter = rng.stream(seed, "trajectory-split", client_id).permutation(samples), len(samples) // 4
    return Split(*(np.sort(part) for part in (order[:quarter], order[quarter : 2 * quarter], order[2 * quarter :])))


def record(
    attack: Trajectory,
    shadows: Shadows,
    again: RoundAgain[KeepUpdates],
    victims: Sequence[Victim],
    fresh_model: Callable[[int], nn.Module],
    *,
    make_engine: Callable[[], Engine],
    folder: Path,
    facts: Mapping[str, Any],
) -> list[Trajectories]:
    """Return the trajectories of clients' models and of a shadow model for each.

    Shadow models and students are clients of a federation that nobody averages, so that any exact engine comes to the same.
    What does not depend on the run, the shadow models' trajectories, is kept in ``folder`` for all runs of the same data,
    partition and model.

    Args:
        attack: says how students learn.
        shadows: says how shadow models are trained; there is one per victim here.
        again: the round.
        victims: clients' models.
        fresh_model: a number -> the whole network with weights of its own.
        make_engine: makes the engine that trains them.
        folder: of all kept trajectories.
        facts: what else they depend on, JSON-able.

    Raises:
        FedFacetError: if the server is attacked, or other clients have too few samples, or students diverge.
        CheckpointError: if a kept file cannot be read.
    """
    clients = again.federation.engine.clients
    ids = [victim.client_id for victim in victims if victim.client_id is not None]
    if len(ids) < len(victims):
        raise FedFacetError(
            "Expected clients' models for attack=trajectory, which takes its own data from other clients, but got the "
            "server's: leave that attack out, or give victim=clients."
        )
    partition = again.data.partition
    splits = {client_id: split_for(partition, client_id, attack.seed) for client_id in ids}
    starts = {client_id: weights_of(fresh_model(partition.num_clients + client_id)) for client_id in ids}
    students = _Students(clients, attack, shadows, fresh_model(0), make_engine, splits, starts)

    files = {client_id: folder / _name_of(attack, shadows, clients, splits[client_id], facts) for client_id in ids}
    if missing := [client_id for client_id in ids if not files[client_id].exists()]:
        print(f"trajectories: {len(missing)} shadow models", file=sys.stderr)
        judged = {client_id: splits[client_id].judged for client_id in missing}
        models = _shadow_models(clients, shadows, fresh_model, make_engine, splits, missing, attack.seed)
        own, teachers = {}, {}
        with contextlib.closing(make_engine()) as engine:
            engine.setup(shadow_clients(shadows, clients, fresh_model(0), partition))
            for client_id, model in models.items():
                predicted, taught = engine.predict(model, [judged[client_id], splits[client_id].distilled])
                own[client_id], teachers[client_id] = predicted.logits, taught.logits
        for client_id, losses in students.losses(teachers, judged, own, whose="shadow models'").items():
            files[client_id].parent.mkdir(parents=True, exist_ok=True)
            keep(files[client_id], "losses", losses)
    own, teachers, judged = {}, {}, {}
    for client_id, victim in zip(ids, victims, strict=True):
        judged[client_id] = victim.audit_set.samples
        (predicted,) = again.federation.engine.predict(victim.model, [victim.audit_set.samples], victim.memory)
        (taught,) = again.federation.engine.predict(victim.model, [splits[client_id].distilled], victim.memory)
        own[client_id], teachers[client_id] = predicted.logits, taught.logits
    targets = students.losses(teachers, judged, own, whose="clients'")
    return [
        Trajectories(
            target=targets[client_id],
            shadow=kept(files[client_id], "losses", len(splits[client_id].judged), attack.distill_epochs + 1),
            shadow_members=np.arange(len(splits[client_id].judged)) < len(splits[client_id].members),
        )
        for client_id in ids
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Students:
    """Models that learn what a teacher says, one per client; they start alike and see the same batches whoever teaches.

    Attributes:
        clients: of the run.
        attack: says how students learn.
        shadows: says on which batches.
        network: their architecture.
        make_engine: makes the engine that trains them.
        splits: client -> whose samples the student learns on.
        starts: client -> the student's first weights.
    """

    clients: Clients
    attack: Trajectory
    shadows: Shadows
    network: nn.Module
    make_engine: Callable[[], Engine]
    splits: Mapping[int, Split]
    starts: Mapping[int, State]

    def losses(
        self,
        teachers: Mapping[int, NDArray[np.float32]],
        judged: Mapping[int, NDArray[np.int64]],
        own: Mapping[int, NDArray[np.float32]],
        *,
        whose: str,
    ) -> dict[int, Scores]:
        """Return, per client, the losses of the samples judged: of its student after every epoch, and of the teacher.

        Args:
            teachers: client -> the teacher's logits of the samples that the student learns on.
            judged: client -> samples.
            own: client -> the teacher's logits of these.
            whose: whose students they are, for who watches.

        Raises:
            FedFacetError: if students diverge.
        """
        labels = self.clients.dataset.y
        models = {client_id: self.starts[client_id] for client_id in teachers}
        losses: dict[int, list[Scores]] = {client_id: [] for client_id in teachers}
        taught = {
            client_id: {SAMPLES: torch.from_numpy(self.splits[client_id].distilled), TEACHER: torch.from_numpy(logits)}
            for client_id, logits in teachers.items()
        }
        with contextlib.closing(self.make_engine()) as engine:
            engine.setup(self._learners(teachers))
            for epoch in range(1, self.attack.distill_epochs + 1):
                progress = f"trajectories: {whose} students, epoch {epoch} of {self.attack.distill_epochs}"
                print(progress, file=sys.stderr)
                for client_id, model in trained(engine, models, self.attack.seed, epoch, taught):
                    models[client_id] = model
                    (predicted,) = engine.predict(model, [judged[client_id]])
                    losses[client_id].append(losses_of(predicted.logits.astype(np.float64), labels[judged[client_id]]))
        found = {}
        for client_id, of_student in losses.items():
            of_teacher = losses_of(own[client_id].astype(np.float64), labels[judged[client_id]])
            found[client_id] = np.stack([*of_student, of_teacher], axis=1)
        if wrong := [client_id for client_id, of in found.items() if not np.isfinite(of).all()]:
            raise FedFacetError(
                f"Expected finite losses of the students for client {wrong[0]}, but they are not: lower "
                "attack.trajectory.distill_lr."
            )
        return found

    def _learners(self, client_ids: Iterable[int]) -> Clients:
        """Return clients who learn what a teacher says on their split, an epoch at a time."""
        clients = self.clients
        optimizer = partial(torch.optim.SGD, lr=self.attack.distill_lr)
        distilled = {client_id: self.splits[client_id].distilled for client_id in client_ids}
        return alone(
            clients,
            DistillationObjective(self.network, optimizer=optimizer),
            optimizer=optimizer,
            dataset=replace(clients.dataset, a=np.arange(len(clients.dataset.y)), augmentation=None),
            partition=_partition(distilled, clients),
            local=LocalTraining(unit="epochs", amount=1, batch_size=self.shadows.batch_size or clients.local.batch_size),
            privacy=None,  # students are the attacker's own
            hides_attributes=False,
        )


def _shadow_models(
    clients: Clients,
    shadows: Shadows,
    fresh_model: Callable[[int], nn.Module],
    make_engine: Callable[[], Engine],
    splits: Mapping[int, Split],
    client_ids: Sequence[int],
    seed: int,
) -> dict[int, State]:
    """Return per client a shadow model, trained on the members of its split."""
    members = _partition({client_id: splits[client_id].members for client_id in client_ids}, clients)
    sent = {client_id: weights_of(fresh_model(client_id)) for client_id in client_ids}
    with contextlib.closing(make_engine()) as engine:
        engine.setup(shadow_clients(shadows, clients, fresh_model(0), members))
        return dict(trained(engine, sent, seed))


def _partition(samples: Mapping[int, NDArray[np.int64]], clients: Clients) -> Partition:
    """Return a partition by client, as large as that of the run; others have no samples."""
    nothing = np.empty(0, np.int64)
    return Partition(tuple(samples.get(number, nothing) for number in range(clients.partition.num_clients)))


def _name_of(attack: Trajectory, shadows: Shadows, clients: Clients, split: Split, facts: Mapping[str, Any]) -> str:
    """Return the name of a file by all that a shadow model's trajectories depend on."""
    key = {
        **key_of(shadows, clients, facts),
        "members": hashlib.sha256(split.members.tobytes()).hexdigest(),
        "others": hashlib.sha256(split.others.tobytes()).hexdigest(),
        "distilled": hashlib.sha256(split.distilled.tobytes()).hexdigest(),
        "distill": [attack.distill_epochs, attack.distill_lr, attack.seed],
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16] + ".safetensors"

"""Shadow models: what an attacker trains to know how models behave on samples that they were, or were not, trained on."""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import nn

from fedfacet import rng, state
from fedfacet.analysis.audits import ATTACK_AGAIN
from fedfacet.arguments import Choice, Declared, Whole
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.cores import num_cores
from fedfacet.data.federated import FederatedData
from fedfacet.engines.base import Engine
from fedfacet.errors import CheckpointError, FedFacetError
from fedfacet.objectives.classification import ClassificationObjective, cross_entropy
from fedfacet.storage.atomic_write import atomic_write, json_text
from fedfacet.storage.lock import lock
from fedfacet.storage.run_files import read
from fedfacet.storage.tensors import sealed, unsealed
from fedfacet.types import Broadcast, ClientTask, Partition, State

_KEY_FILE = "pool.json"
_MOST_BYTES = 1 << 36


@dataclass(frozen=True, kw_only=True)
class Shadows(Declared):
    """How shadow models are trained: each by itself, on a random half of all samples that can be attacked.

    Every sample, whether a member or not, is in exactly half of the halves, so that one pool serves every client, every attack
    and every run of the same data and model. An attacker who has that much knows more than the thesis' (10,000 samples of
    other clients). What it finds is no bound all the same: these models are trained by themselves, not in a federation.

    With ``data="others"`` the attacker of a client is the thesis'. Each model is trained on a random set of the other clients'
    training samples, and each client has a pool. No model saw a sample of the client's, so LiRA is offline.

    Source: the thesis, sections 4.5.2 and 4.7.3, and its released code for the 10,000 samples. Deviation: A set is half of the
    other clients' samples where these are fewer than twice ``samples``. The released code then takes up to all of them.

    Attributes:
        data: ``"all"``, halves of all samples that can be attacked, or ``"others"``.
        samples: of the other clients, in each model's set, 2 or larger.
        models: how many, an even number, 2 or larger.
        epochs: of training, 1 or larger; the thesis' released code takes 100.
        batch_size: 1 or larger; ``None`` for that of the run.
        seed: of halves, weights and batches, 0 or larger.

    Raises:
        ValueError: if a value is out of range.
    """

    option_group = "shadow."

    data: Annotated[str, Choice("all", "others")] = "all"
    samples: Annotated[int, Whole(2)] = 10_000
    models: Annotated[int, Whole(2)] = 16
    epochs: Annotated[int, Whole()] = 100
    batch_size: Annotated[int | None, Whole()] = None
    seed: Annotated[int, Whole(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models % 2:
            raise ValueError(
                f"Expected `shadow.models` to be even, so that each sample is in half of them, but got {self.models}."
            )

    def halves(self, num_samples: int) -> NDArray[np.bool_]:
        """Return whether each model is trained on each sample, shape (S, n); each column holds S/2 times true.

        Models 2i and 2i + 1 have what the other has not.

        Raises:
            FedFacetError: if there are too few samples for so many models.
        """
        if num_samples < 2:
            raise FedFacetError(f"Expected 2 samples or more to train shadow models on, but got {num_samples}.")
        if self.models > (most := math.comb(num_samples, num_samples // 2)):
            raise FedFacetError(
                f"Expected `shadow.models` to be at most {most}, as many as {num_samples} samples have halves, but got "
                f"{self.models}: give fewer."
            )
        chosen = np.zeros((self.models, num_samples), dtype=np.bool_)
        for pair in range(0, self.models, 2):
            order = rng.stream(self.seed, "shadow-halves", pair).permutation(num_samples)
            chosen[pair, order[: num_samples // 2]] = True
            chosen[pair + 1] = ~chosen[pair]
        return chosen

    def sets_for(self, partition: Partition, client_id: int) -> tuple[NDArray[np.int64], ...]:
        """Return what each model of one client's attacker is trained on with ``data="others"``, in ascending order.

        Raises:
            FedFacetError: if the other clients have too few samples.
        """
        rest = [own for other, own in enumerate(partition.indices) if other != client_id]
        samples = np.concatenate(rest) if rest else np.empty(0, np.int64)
        if len(samples) < 4:
            raise FedFacetError(
                f"Expected 4 samples or more of clients other than {client_id} for shadow.data=others, but got {len(samples)}: "
                "give shadow.data=all."
            )
        size = min(self.samples, len(samples) // 2)
        draws = (rng.stream(self.seed, "shadow-others", client_id, number) for number in range(self.models))
        return tuple(np.sort(draw.permutation(samples)[:size]) for draw in draws)


@dataclass(frozen=True, slots=True, eq=False)
class ShadowData:
    """What shadow models are trained on, and what they are asked about; positions in the data set.

    Attributes:
        samples: that can be attacked, ascending, shape (N,).
        sets: per model what it is trained on, ascending.
        client_id: whose attacker trains them on other clients' samples; ``None`` where all clients share them.
    """

    samples: NDArray[np.int64]
    sets: tuple[NDArray[np.int64], ...]
    client_id: int | None = None

    @property
    def members(self) -> NDArray[np.bool_]:
        """Whether each model was trained on each sample, shape (S, N)."""
        return np.stack([np.isin(self.samples, own) for own in self.sets])

    @property
    def key(self) -> dict[str, Any]:
        """What a pool's folder depends on; JSON-able."""
        shown = {"samples": self.samples} | ({} if self.client_id is None else {"sets": np.concatenate(self.sets)})
        return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in shown.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What shadow models say of the samples that can be attacked.

    Attributes:
        samples: positions in the data set, ascending, shape (N,).
        members: whether each model was trained on each sample, shape (S, N).
        logits: shape (S, N, Y), float32.
    """

    samples: NDArray[np.int64]
    members: NDArray[np.bool_]
    logits: NDArray[np.float32]

    def of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return logits (S, n, Y) and membership (S, n) for some of the samples."""
        places = np.searchsorted(self.samples, samples)
        return self.logits[:, places].astype(np.float64), self.members[:, places]


def shadow_data(shadows: Shadows, data: FederatedData, source: str, client_id: int | None = None) -> ShadowData:
    """Return what the shadow models of all clients are trained on, or those of one client's attacker.

    What can be attacked is what clients, or the client, train on, and what clients hold out or the test set.

    Raises:
        FedFacetError: if there are too few samples.
    """
    others = data.local_holdout if source == "holdout" else (data.dataset.test,)
    owned = data.partition.indices if client_id is None else (data.partition.indices[client_id],)
    samples = np.unique(np.concatenate([*owned, *others]))
    if client_id is not None:
        return ShadowData(samples, shadows.sets_for(data.partition, client_id), client_id)
    return ShadowData(samples, tuple(samples[chosen] for chosen in shadows.halves(len(samples))))


def train_pool(
    shadows: Shadows,
    clients: Clients,
    fresh_model: Callable[[int], nn.Module],
    data: ShadowData,
    *,
    engine: Engine,
    folder: Path,
    facts: Mapping[str, Any],
    report: Callable[[int, int], None] = lambda done, all: None,
) -> Pool:
    """Return the pool, trained as far as ``folder`` does not hold it yet.

    Shadow models are clients of a federation that nobody averages: any exact engine trains the same ones, and a pool that was
    killed is gone on with. The loss, the optimizer, augmentation and private gradients are those of the run's clients;
    transforms, corrections and personal layers are left out.

    Args:
        shadows: how many, and how they are trained.
        clients: those of the run.
        fresh_model: the number of a shadow model -> the network with weights of its own.
        data: what they are trained on.
        engine: trains them; it is set up and closed here.
        folder: of all pools; each lies in a folder of its own, by what it depends on.
        facts: what else the pool depends on, JSON-able.
        report: is called with how many models of how many are done.

    Raises:
        FedFacetError: if another process trains the same pool.
        CheckpointError: if a file of the pool cannot be read.
    """
    samples = data.samples
    key = {**key_of(shadows, clients, facts), **data.key, "models": shadows.models}
    own = folder / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedFacetError(
            f"Expected a folder for shadow models, but {own} cannot be made ({error.strerror}): choose another."
        ) from None
    with lock(own) as holder:
        if holder is not None:
            raise FedFacetError(f"Expected a pool that nobody else trains, but {holder} is at {own}: wait for it.")
        _check_key(own / _KEY_FILE, key)
        missing = [number for number in range(shadows.models) if not _file(own, number).exists()]
        report(shadows.models - len(missing), shadows.models)
        if missing:
            engine.setup(shadow_clients(shadows, clients, fresh_model(0), Partition(data.sets)))
            with contextlib.closing(engine):
                size = max(4, num_cores())
                for start in range(0, len(missing), size):
                    _train(missing[start : start + size], shadows.seed, fresh_model, samples, engine, own)
                    report(shadows.models - len(missing) + min(start + size, len(missing)), shadows.models)
    logits = np.stack([kept(_file(own, number), "logits", len(samples)) for number in range(shadows.models)])
    return Pool(samples, data.members, logits)


def key_of(shadows: Shadows, clients: Clients, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the training of a model of the attacker's depends on, but for its samples; JSON-able."""
    return {
        **facts,
        "data": clients.facts.data_digest,
        "epochs": shadows.epochs,
        "batch_size": shadows.batch_size or clients.local.batch_size,
        "seed": shadows.seed,
        "memory_format": str(clients.memory_format),
        "precision": clients.precision,
        "device": clients.device.type,
        "torch": torch.__version__,
    }


def _train(
    numbers: Sequence[int],
    seed: int,
    fresh_model: Callable[[int], nn.Module],
    samples: NDArray[np.int64],
    engine: Engine,
    folder: Path,
) -> None:
    """Train some models, and keep what they say of all samples."""
    for number, model in trained(engine, {number: weights_of(fresh_model(number)) for number in numbers}, seed):
        (predicted,) = engine.predict(model, [samples])
        if not np.isfinite(predicted.logits).all():
            raise FedFacetError(
                f"Expected finite logits of shadow model {number}, but it diverges: change shadow.epochs or shadow.batch_size."
            )
        keep(_file(folder, number), "logits", predicted.logits)


def trained(
    engine: Engine, sent: Mapping[int, State], seed: int, epoch: int = 1, taught: Mapping[int, State] | None = None
) -> Iterator[tuple[int, State]]:
    """Yield each client with what it made of the model that it was sent, in order."""
    tasks = [ClientTask(k, epoch, seed, Broadcast(model, taught[k] if taught else {})) for k, model in sent.items()]
    for update in list(engine.run(tasks)):
        yield update.client_id, state.add(sent[update.client_id], update.delta | update.buffers)


def weights_of(network: nn.Module) -> State:
    """Return a copy of a network's weights and buffers."""
    return state.clone(dict(network.state_dict()))


def shadow_clients(shadows: Shadows, clients: Clients, network: nn.Module, partition: Partition) -> Clients:
    """Return clients who train shadow models by themselves, with the loss and the optimizer of the run's."""
    loss = getattr(clients.objective, "loss", cross_entropy)
    local = LocalTraining(unit="epochs", amount=shadows.epochs, batch_size=shadows.batch_size or clients.local.batch_size)
    return alone(
        clients, ClassificationObjective(network, loss=loss, optimizer=clients.optimizer), partition=partition, local=local
    )


def alone(clients: Clients, objective: LightningModule, **changes: Any) -> Clients:
    """Return clients with another objective and other changes, and without what a federation does to updates and models."""
    placed = objective.to(device=clients.device, memory_format=clients.memory_format)
    return replace(clients, objective=placed, transforms=(), personal=frozenset(), other_objectives=(), **changes)


def _check_key(file: Path, key: Mapping[str, Any]) -> None:
    """Write down what a pool depends on, or hold it to what is written."""
    if not file.exists():
        with atomic_write(file) as unfinished:
            unfinished.write_text(json_text(key))
        return
    known = read(file, lambda content: dict(json.loads(content)), remedy=ATTACK_AGAIN)
    if differing := sorted(name for name in {*known, *key} if known.get(name) != key.get(name)):
        raise CheckpointError(f"Expected {file} to be of this pool, but its {differing[0]} differs: remove its folder.")


def _file(folder: Path, number: int) -> Path:
    return folder / f"shadow_{number:04d}.safetensors"


def keep(file: Path, name: str, array: NDArray[Any]) -> None:
    """Write what a model of the attacker's says, for later attacks."""
    with atomic_write(file) as unfinished:
        unfinished.write_bytes(sealed({name: torch.tensor(array)}))


def kept(file: Path, name: str, num_samples: int, num_columns: int | None = None) -> NDArray[Any]:
    """Return what ``keep`` wrote, of so many samples.

    Raises:
        CheckpointError: as ``read``.
    """

    def parse(content: bytes) -> NDArray[Any]:
        array: NDArray[Any] = unsealed(content)[name].numpy()
        if array.shape != (num_samples, num_columns or array.shape[-1]) or not np.isfinite(array).all():
            raise ValueError(f"it does not hold finite {name} of {num_samples} samples")
        return array

    return read(file, parse, _MOST_BYTES, ATTACK_AGAIN)

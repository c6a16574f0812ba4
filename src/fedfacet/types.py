"""The values that pass between rooms. Frozen, except the federation's saved state; none of them knows a room.

You find here all that a part is handed and hands on; what a round leaves behind is in ``records.py``.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.answer_form import AnswerForm

State = dict[str, Tensor]
"""A named bundle of tensors: a model's weights, an update, a client's memory."""

ServerState = dict[str, Any]
"""What a server part carries from round to round: tensors and plain data, never changed in place."""


WEIGHTED_DRAWS = "selection/weighted_draws"
"""What a participation with weights needs of a selector: that it draws clients in proportion to them."""

PAYMENTS = "selection/payments"
"""What a termination by a budget needs of a selector: that it pays clients, and says in ``metrics`` what a round cost."""

SUMMED_GRADIENTS = "optimizer/summed_gradients"
"""What clients give whose update is a weighted sum of gradients, as SGD's is; ``ClientUpdate.step_weight`` sums the weights."""

STORED_GRADIENTS = "aggregator/stored_gradients"
"""What a server gives that goes on with the last update of a client that sends none in a round."""

CLIENT_GRADIENTS = "updates/gradients"
"""What clients give whose update is their gradient, times a learning rate that stays: one step on all of their samples."""

ASYNCHRONOUS = "rounds/asynchronous"
"""Rounds that do not wait for their clients."""

CENTRAL_NOISE = "privacy/central"
"""Noise that the server adds to a sum of updates, which it divides by a number that is fixed beforehand."""

DEVICES = "devices"
"""Rounds that take simulated time."""

WAITING = "devices/waiting"
"""Rounds that wait for their clients in a special way: until a deadline, for the first of more, or for one after another."""

PARTS = "clients/parts"
"""Clients that hold parts of the model."""

NOISE = "privacy/noise"
"""Noise by which an epsilon is counted, at the clients or at the server."""

OVERCOMMIT = "devices/overcommit"
"""Rounds that ask more clients than they wait for."""

GROUP_WEIGHTS = "group_weights"
"""What the server sends so that clients weight their samples by class and attribute value, float32 of shape (Y, A)."""


class Batch(NamedTuple):
    """Samples on their way into a model.

    Attributes:
        x: inputs, shape (B, C, H, W), float32, for images.
        y: classes, shape (B,), int64, in [0, num_classes).
        a: attribute values, shape (B,), int64, in [0, num_attributes). Training never reads them; measurement does.
    """

    x: Tensor
    y: Tensor
    a: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Who owns which sample.

    Args:
        indices: per client the sorted positions of its samples in the data set, each of shape (n_k,), pairwise disjoint.
    """

    indices: tuple[NDArray[np.int64], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all clients' positions as one array; one by one, a large population would take ten times the space."""
        return cut_partition, self.joined

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.indices)

    @property
    def pooled(self) -> "Partition":
        """The partition in which one client owns what all clients own here."""
        return Partition((np.sort(np.concatenate([np.empty(0, np.int64), *self.indices])),))

    @property
    def digest(self) -> str:
        """The sha256 over every client's sample positions, as hexadecimal text; equal partitions have equal digests."""
        positions, sizes = self.joined
        numbers = np.empty(len(positions) + len(sizes), dtype="<i8")  # each client's size, and its positions behind it
        is_size = np.zeros(len(numbers), dtype=bool)
        is_size[np.cumsum(sizes + 1) - sizes - 1] = True
        numbers[is_size], numbers[~is_size] = sizes, positions
        return hashlib.sha256(numbers.data).hexdigest()

    @property
    def joined(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All clients' positions one after another, and how many each has, shape (K,)."""
        sizes = np.fromiter(map(len, self.indices), dtype=np.int64, count=len(self.indices))
        return np.concatenate([np.empty(0, np.int64), *self.indices]), sizes


def cut_partition(positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> Partition:
    """Return the partition whose ``joined`` is given."""
    ends = np.cumsum(sizes).tolist()
    return Partition(tuple(positions[start:end] for start, end in zip([0, *ends], ends, strict=False)))


class ServerData(NamedTuple):
    """Samples that the server owns, on which it judges models.

    Attributes:
        samples: their sorted positions in the data set, shape (n,).
        attributes: whether the server knows their attribute values.
    """

    samples: NDArray[np.int64]
    attributes: bool = True


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """Which axes of a model's tensors count channels, so that some of the channels make a smaller model.

    Attributes:
        sizes: group of channels -> how many it has, from the input to the output.
        axes: tensor -> per axis the group whose channels it counts, ``None`` for none; axes that are left out count none. What
            flattened maps feed counts every channel as often as a map has pixels.
    """

    sizes: Mapping[str, int]
    axes: Mapping[str, tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server part may know before the first round.

    Attributes:
        num_clients: the size of the population.
        model: the initial global model; what of it is frozen is not in it.
        parameters: names of the trainable parameters that clients send; every update's ``delta`` has these.
        buffers: names of the floating-point buffers that clients send; every update's ``buffers`` has these.
        personal: names of the model's tensors that stay with the clients.
        data_digest: by which the clients' data are known again when a run goes on.
        num_attributes: how many values the attribute of samples may have.
        frozen_digest: of the parameters that nobody trains and that do not travel; empty without any.
        kinds_sent: name of what clients send along with updates -> what kind it is; see ``privacy.disclosure.KINDS``.
        num_classes: of the samples; 0 where that is not known.
        derived: what of the model follows from its other tensors; see ``fedfacet.derived``.
        partition_digest: by which the partition is known again when a run goes on.
    """

    num_clients: int
    model: State
    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    personal: Set[str] = frozenset()
    data_digest: str = ""
    num_attributes: int = 2
    frozen_digest: str = ""
    kinds_sent: Mapping[str, str] = field(default_factory=dict)
    num_classes: int = 0
    derived: tuple[Any, ...] = ()
    partition_digest: str = ""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What the server sends to one client.

    Attributes:
        model: the parameters and buffers that the client starts from; shared by reference, never written to. Clients may be
            sent models of different shapes, if there is a client program for each shape.
        extras: what else the aggregator sends along (a control variate, say).
    """

    model: State
    extras: State = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientTask:
    """One client's order for one round.

    Attributes:
        client_id: position of the client in the partition.
        round: number of the round, counted from 1.
        seed: the run's seed; every draw of the client comes from ``rng.stream(seed, purpose, round, client_id)``.
        broadcast: what the server sent.
        memory: what the client itself kept from its last participation.
        step_fraction: the part in (0, 1] of the planned local steps that the client will finish.
        lr_factor: by what the optimizer's learning rate is multiplied in this round.
    """

    client_id: int
    round: int
    seed: int
    broadcast: Broadcast
    memory: State = field(default_factory=dict)
    step_fraction: float = 1.0
    lr_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientStart:
    """What an objective and its correction are told before a client's first step.

    Attributes:
        broadcast: what the server sent.
        memory: what the client kept from its last participation.
        num_steps: how many steps the client will take.
        lr: the learning rate of this round, of the optimizer's first parameter group.
        lr_factor: by what the scheduler multiplied the optimizer's learning rate to get there.
    """

    broadcast: Broadcast
    memory: State
    num_steps: int
    lr: float
    lr_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """What an objective and its correction are told after a client's last step.

    Attributes:
        delta: local minus broadcast value of every trainable parameter that leaves the client, on the CPU.
        num_steps: local steps taken.
        lr: the learning rate of this round, as in ``ClientStart``.
        step_weight: ``ClientUpdate.step_weight``; ``-delta / (lr * step_weight)`` is a weighted mean of the gradients met.
    """

    delta: State
    num_steps: int
    lr: float
    step_weight: float


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """What one client sends back.

    Attributes:
        client_id: position of the client in the partition.
        delta: local minus broadcast value of every trainable parameter, by ``state_dict`` name.
        buffers: local minus broadcast value of every floating-point buffer (running statistics); averaged or ignored by the
            aggregator, and never an argument of a server optimizer.
        num_samples: how many samples the client holds (n_k).
        num_steps: local steps taken.
        step_weight: ||a_k||_1 of FedNova, the weight of the accumulated gradients in ``delta``; equal to ``num_steps`` for
            plain SGD without momentum.
        metrics: sums and counts measured while training, never ratios: ``loss_sum`` over the samples seen, and ``num_seen``.
        extras: what else the objective and its correction send along.
        memory: what the client keeps for its next participation; it does not leave the client.
        silent: whether the client has trained and sends nothing; then ``delta``, ``buffers`` and ``extras`` are empty, and the
            server takes nothing from the rest but that the client is done.
        num_lost: how many numbers of it were lost on their way to the server, which has zeros in their places.
        report: written by the server: what the client answered to the aggregator's question; ``None`` where it has none.
        judged: written by the server where the aggregator judges models: what the model that was sent and what this client's
            model (that and the update) say of the server's samples. Each are counts by class, attribute value and predicted
            class, int64 of shape (Y, A, Y); A is 1 where the server does not know attributes.
        mask: written by the server where clients hold parts of the model: 1 for entries of ``delta`` and ``buffers`` that the
            client held, 0 for others, which are 0 there; ``None`` where everybody holds everything.
        staleness: written by the server: how many rounds ago the model that the client was sent was the current one.
    """

    client_id: int
    delta: State
    buffers: State
    num_samples: int
    num_steps: int
    step_weight: float
    metrics: Mapping[str, float]
    extras: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)
    silent: bool = False
    num_lost: int = 0
    report: Any = None
    judged: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    mask: State | None = None
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class SummedUpdate(ClientUpdate):
    """A client's update that was added to a sum before it reached the server: ``delta`` and ``buffers`` are empty.

    Attributes:
        fault: what is wrong with the update, which then is not in the sum; ``None`` if nothing is.
        num_floats: how many numbers the client sent.
    """

    fault: str | None = None
    num_floats: int = 0


class RoundNeeds(NamedTuple):
    """What a whole round takes on a client's device, without jitter.

    Attributes:
        download: seconds to receive the model.
        compute: seconds to train.
        upload: seconds to send the update.
        joules: of all that.
    """

    download: float
    compute: float
    upload: float
    joules: float


class Answer(NamedTuple):
    """A client's answer to a query.

    Attributes:
        value: plain numbers (or nested lists of them), so that it can be saved and logged.
        floats_up: how many numbers left the client.
        samples: how many samples the client passed through a model to find the answer, forward or backward.
    """

    value: Any
    floats_up: int
    samples: int


class Query(Protocol):
    """A question that the server may ask a client, as both sides see it; the classes live in ``clients/queries``."""

    name: str
    kind: str
    form: AnswerForm
    reads: frozenset[str]
    epsilon: float | None
    needs_model: bool
    floats_down: int

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier by which an epsilon counts the answer; ``None`` where it cannot."""

    def answer(self, context: Any) -> Answer:
        """Return the client's answer; ``context`` exists only where the data lives."""


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """All that a selector may look at.

    Attributes:
        round: number of the round, counted from 1.
        num_clients: the size of the population.
        cohort_size: how many clients ``federation.cohort_size`` asks for.
        num_slots: how many clients the cohort shall have: ``cohort_size``, or all who are available where these are fewer.
        available: the clients able to take part in this round, in ascending order.
        disclosed: query name -> client -> what that client has answered so far in the run.
        rng: the generator of this round's selection.
        ask: puts a query to some clients, on this round's model, and returns their answers; the costs are counted and the
            answers remembered in ``disclosed``.
        log_weights: logarithms of the weights by which clients are to be drawn, shape (num_clients,); ``None`` for all alike.
    """

    round: int
    num_clients: int
    cohort_size: int
    num_slots: int
    available: Sequence[int]
    disclosed: Mapping[str, Mapping[int, Any]]
    rng: np.random.Generator
    ask: Callable[[Query, Sequence[int]], Mapping[int, Any]]
    log_weights: NDArray[np.float64] | None = None

    def ask_once(self, query: Query, client_ids: Sequence[int]) -> dict[int, Any]:
        """Return the answers of ``client_ids`` to a query, asking only those who have not answered it in this run."""
        known = self.disclosed.get(query.name, {})
        unknown = [client_id for client_id in client_ids if client_id not in known]
        asked = self.ask(query, unknown) if unknown else {}
        return {client_id: known[client_id] if client_id in known else asked[client_id] for client_id in client_ids}

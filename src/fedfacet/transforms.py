"""What happens to an update before it leaves the client."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import rng as streams
from fedfacet import state
from fedfacet.arguments import Choice, Declared, Number, Whole, Within, check_whole
from fedfacet.types import DEVICES, ClientTask, ClientUpdate, State


class UpdateTransform(Declared, ABC):
    """What happens to an update before it leaves the client: its last deed."""

    clients: Sequence[int] | None = None
    """To whose updates it happens; ``None`` for everybody's. A federation without such a client is refused."""

    relabelled: ClassVar[Callable[..., NDArray[np.int64]] | None] = None
    """``relabelled(self, client_id, y, num_classes)`` returns the classes that a client takes its samples to have.

    It is called once for every client, before the first round, with the true ones, shape (n_k,), which it does not write to.
    What the client trains on and what it answers follows from them. ``None`` for the true ones.
    """

    requires: frozenset[str] = frozenset()
    """What some other part must give: ``DEVICES`` if it asks how fast clients' lines are."""

    excludes: Mapping[str, str] = MappingProxyType({})
    """What it cannot do with if another part provides it, each with the reason and the remedy."""

    on_lines: ClassVar[Callable[..., NDArray[np.float64]] | None] = None
    """``on_lines(self, up_K)`` looks at the bytes per second that clients send, shape (K,), once, before the first round.

    It returns what they come to with this transform. ``None`` where it does not look at them.
    """

    def __post_init__(self) -> None:
        """Check the fields, and that ``clients`` are numbers from 0 on."""
        super().__post_init__()
        if "clients" in vars(self):  # it is a field
            self.clients = tuple(vars(self)["clients"])
            for client_id in self.clients:
                check_whole("clients", client_id, 0)

    @abstractmethod
    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is sent, drawing from ``rng`` only."""

    def consider(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Return what becomes of an update after ``apply``, in view of what the client was sent and of what it kept."""
        return update


@dataclass(eq=False, kw_only=True)
class ClipUpdate(UpdateTransform):
    r"""Scale the delta down to an l2 norm: :math:`\Delta \leftarrow \Delta \min(1, c / \lVert\Delta\rVert_2)`.

    Args:
        clip_norm: c, larger than 0, over all trainable parameters together.
    """

    clip_norm: Annotated[float, Number("larger than 0")] = 10.0

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta clipped."""
        norm = state.norm(update.delta)
        if not norm > self.clip_norm:
            return update
        return replace(update, delta=state.scaled(update.delta, self.clip_norm / norm))


@dataclass(eq=False, kw_only=True)
class ClipAndNoise(UpdateTransform):
    r"""Clip the delta to an l2 norm and add Gaussian noise to every entry of it.

    .. math:: \Delta \leftarrow \Delta \min(1, c / \lVert\Delta\rVert_2) + \mathcal{N}(0, z^2 c^2 I).

    It protects a client against whoever sees its own update, the server among them: nobody is trusted. Per round in which the
    client takes part it is one Gaussian mechanism. Whether the client sends its update or nothing at all moves what is sent by
    c at most, so that the noise multiplier is z. Whatever else happens to the client's data, one sample more or other samples
    altogether, moves it by 2c at most, so that it is z / 2. If the server saw only the mean of n equal-weight updates (by
    secure aggregation, which is not here), both would be sqrt(n) times as large.

    Only the delta is covered. What else a client sends is not: sample and step counts, the sum of its training losses, answers
    to queries. Running statistics and what methods send along (``buffers``, ``extras``) go into the next model, so a federation
    whose clients send these refuses this transform; layers that stay with the client (``memory``) are not noised.
    The noise is a function of the run's seed: whoever knows the seed can take it off.

    Source: the Gaussian mechanism on clipped updates as in McMahan et al., Learning Differentially Private Recurrent Language
    Models, ICLR 2018, arXiv:1710.06963. Deviation: there the server adds the noise, to the mean; here every client does.

    Args:
        clip_norm: c, larger than 0 and finite, over all trainable parameters together.
        noise_multiplier: z, 0 or larger and finite; 0 only clips.
    """

    clip_norm: Annotated[float, Number("larger than 0 and finite")] = 1.0
    noise_multiplier: Annotated[float, Number("0 or larger and finite")] = 1.0

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta clipped and noised."""
        norm = state.norm(update.delta)
        # Not `norm > clip_norm`: NaN must stay NaN, and be refused by the server, rather than pass unclipped.
        delta = update.delta if norm <= self.clip_norm else state.scaled(update.delta, self.clip_norm / norm)
        if not self.noise_multiplier:
            return replace(update, delta=delta)
        std = self.noise_multiplier * self.clip_norm
        noise = {
            name: torch.as_tensor(std * rng.standard_normal(tuple(tensor.shape)), dtype=tensor.dtype)
            for name, tensor in delta.items()
        }
        return replace(update, delta=state.add(delta, noise))


@dataclass(eq=False, kw_only=True)
class LabelFlip(UpdateTransform):
    r"""Have some clients take their samples for other classes than they are: a fault, or an attack on the model.

    With ``"flip"`` the Y classes change places, :math:`y \leftarrow Y - 1 - y`; with ``"shuffle"`` a client's labels are dealt
    to its samples at random, once, so that their counts stay. Such a client trains on them, and answers questions of the
    server by them; the update is sent as it comes. Who owns what, validation and test, and what a client holds out for
    measuring keep the true labels.

    Source: ``"flip"`` is of Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security
    2020, arXiv:1911.11815, section on experiments.

    Args:
        clients: numbers of the clients, from 0.
        how: ``"flip"`` or ``"shuffle"``.
        seed: of the shuffling, 0 or larger; it does not follow the run's seed.
    """

    clients: Sequence[int] = (0,)
    how: Annotated[str, Choice("flip", "shuffle")] = "flip"
    seed: Annotated[int, Whole(0)] = 0

    def relabelled(self, client_id: int, y: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return other classes, if it is one of those clients."""
        if client_id not in self.clients:
            return y
        if self.how == "flip":
            return num_classes - 1 - y
        return streams.stream(self.seed, "label_flip", client_id).permutation(y)

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is: the labels did it."""
        return update


@dataclass(eq=False, kw_only=True)
class PacketLoss(UpdateTransform):
    r"""Lose packets of the updates of clients with slow lines, which cannot afford to send them again.

    An update's numbers are cut into packets of P. A client whose line is among the slowest share q sends each packet once, and
    each is lost with the probability r. The server takes zeros for what is lost and, with ``compensation="scale"``, what has
    arrived times 1 / (1 - r), so that an update is right on average:

    .. math:: \Delta_k \leftarrow \frac{m_k \odot \Delta_k}{1 - r}, \qquad
        \mathbb{E}[\Delta_k \text{ as it arrives}] = \Delta_k,

    with m_k 0 on lost packets and 1 elsewhere. The other clients send lost packets again until they arrive, and sending takes
    them 1 / (1 - r) times as long on average. So a client with a slow line takes part, where ``selector=bandwidth_threshold``
    leaves it out.

    The delta and running statistics are sent in packets. Whole numbers (a count of batches) and what methods send along cross
    as they are. ``comm/floats_up`` counts what has arrived, ``sim/bytes_up`` what an update without loss has. Which packets are
    lost is drawn from the client's own generator for the round (law 2). The loss is that of the way to the server; models
    arrive whole.

    Source: Zhou, Fang and Hui, Loss Tolerant Federated Learning (LT-FL), arXiv:2105.03591, ThrowRightAway. Mask,
    compensation, r = 0.1 and q = 0.3 are those of the authors' released code. They were not compared with the paper's text.

    Deviations: the code loses single numbers, which is ``packet_floats=1``; the default of P is ours. It loses numbers of the
    client's weights instead of its update: the mean is the same, and the noise larger. Its slow clients are the last ones by
    number; here they have the slowest lines of ``devices``.

    Args:
        rate: r, in [0, 1); 0 changes nothing.
        insufficient: q, the share of clients whose lines are too slow to send again, in [0, 1]; clients with lines as fast as
            the fastest of these belong to them.
        packet_floats: P, 1 or larger.
        compensation: ``"scale"`` or ``"none"``.
    """

    requires = frozenset({DEVICES})

    rate: Annotated[float, Within("[0, 1)")] = 0.1
    insufficient: Annotated[float, Within("[0, 1]")] = 0.3
    packet_floats: Annotated[int, Whole()] = 256
    compensation: Annotated[str, Choice("scale", "none")] = "scale"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lossy: frozenset[int] = frozenset()

    def on_lines(self, up_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """Find the slow lines; return the rates of the others less what is sent again."""
        number = round(self.insufficient * len(up_K))
        lossy_K = up_K <= (np.sort(up_K)[number - 1] if number else -np.inf)
        self._lossy = frozenset(np.flatnonzero(lossy_K).tolist())
        return np.where(lossy_K, up_K, up_K * (1 - self.rate))

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return what arrives of an update."""
        if update.client_id not in self._lossy or not self.rate:
            return update
        sent = [tensor for tensor in (*update.delta.values(), *update.buffers.values()) if tensor.is_floating_point()]
        number = sum(tensor.numel() for tensor in sent)
        lost_P = rng.random(-(-number // self.packet_floats)) < self.rate
        lost_N = np.repeat(lost_P, self.packet_floats)[:number]
        lost = iter(torch.split(torch.from_numpy(lost_N), [tensor.numel() for tensor in sent]))
        delta, buffers = (self._arrived(part, lost) for part in (update.delta, update.buffers))
        return replace(update, delta=delta, buffers=buffers, num_lost=update.num_lost + int(lost_N.sum()))

    def _arrived(self, tensors: Mapping[str, Tensor], lost: Iterator[Tensor]) -> State:
        factor = 1 / (1 - self.rate) if self.compensation == "scale" else 1.0
        return {
            name: (tensor * factor).masked_fill(next(lost).view_as(tensor).to(tensor.device), 0.0)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in tensors.items()
        }


@dataclass(eq=False, kw_only=True)
class RandomUpdate(UpdateTransform):
    r"""Have some clients send Gaussian noise instead of what they have learnt: a fault, or an attack on the model.

    .. math:: \Delta_k \leftarrow \sigma \, \mathcal{N}(0, I)

    Buffers, extras and what the client keeps stay as they are: a running variance must not become negative. The noise is drawn
    from the client's own generator for the round (law 2).

    Source: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, arXiv:1703.02757, section on experiments, the
    Gaussian attack, with a standard deviation of 200.

    Args:
        clients: numbers of the clients, from 0.
        scale: sigma, larger than 0 and finite, the standard deviation of every entry.
    """

    clients: Sequence[int] = (0,)
    scale: Annotated[float, Number("larger than 0, and finite")] = 1.0

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with another delta, if it is one of those clients'."""
        if update.client_id not in self.clients:
            return update
        delta = {
            name: torch.as_tensor(self.scale * rng.standard_normal(tuple(tensor.shape)), dtype=tensor.dtype)
            for name, tensor in update.delta.items()
        }
        return replace(update, delta=delta)


@dataclass(eq=False, kw_only=True)
class SignFlip(UpdateTransform):
    r"""Have some clients turn their delta round: a fault, or an attack on the model.

    .. math:: \Delta_k \leftarrow -s \, \Delta_k

    Buffers, extras and what the client keeps stay as they are: a running variance must not become negative.

    Source: Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous
    Datasets, AAAI 2019, arXiv:1811.03761, the sign-flipping attack.

    Args:
        clients: numbers of the clients, from 0.
        scale: s, larger than 0 and finite; with n clients of whom f turn their updates round, an average of equal updates goes
            backwards from (n - f) / f on.
    """

    clients: Sequence[int] = (0,)
    scale: Annotated[float, Number("larger than 0, and finite")] = 1.0

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta turned round, if it is one of those clients'."""
        if update.client_id not in self.clients:
            return update
        return replace(update, delta=state.scaled(update.delta, -self.scale))

"""A channel that loses packets: clients with slow lines send once, and what is lost is made up for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import ClientUpdate, State


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

    Source: LT-FL (arXiv:2105.03591), as the thesis tells of it (section 3.3 and table 4); the paper was not read, and r, P
    and q are ours. Deviation: the server could also divide every entry by how many clients it has of it; it does not, since
    that is an average of another kind than the aggregators'.

    Args:
        rate: r, in [0, 1); 0 changes nothing.
        insufficient: q, the share of clients whose lines are too slow to send again, in [0, 1]; clients with lines as fast as
            the fastest of these belong to them.
        packet_floats: P, 1 or larger.
        compensation: ``"scale"`` or ``"none"``.

    Raises:
        ValueError: if a value is out of range.
    """

    needs_devices = True

    def __init__(
        self, *, rate: float = 0.1, insufficient: float = 0.3, packet_floats: int = 256, compensation: str = "scale"
    ) -> None:
        check_within("rate", rate, "[0, 1)")
        check_within("insufficient", insufficient, "[0, 1]")
        check_whole("packet_floats", packet_floats)
        check_choice("compensation", compensation, ("scale", "none"))
        self.rate = rate
        self.insufficient = insufficient
        self.packet_floats = packet_floats
        self.compensation = compensation
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

"""Nine ways to choose channels, of the thesis, and FedRolex's window."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice, Whole
from fedfacet.submodels.base import Channels, Holder, Submodel, Taxonomy, kept

LETTERS = {
    "one": "O", "groups": "G", "each": "U", "fixed": "F", "every_round": "S", "blocks": "M", "random": "R", "rolling": "-",
}  # fmt: skip
"""Of the thesis' codes."""

PUBLISHED = {
    "OFM": "HeteroFL, arXiv:2010.01264",
    "USR": "Federated Dropout, arXiv:1812.07210",
    "OS-": "FedRolex, arXiv:2212.01548",
}
"""What had a name before the thesis, by its code, and what the thesis has no code for."""


@dataclass(eq=False, kw_only=True)
class ChannelSets(Submodel):
    r"""Sets of channels that are shared by all weak clients, by groups of them, or by nobody.

    A set has a number s, and the client with place :math:`\pi(k)` among the others holds

    - grouping ``"one"``: set 0; in round t, where sets change, the t-th;
    - ``"groups"``: set :math:`\pi(k) \bmod G`;
    - ``"each"``: set :math:`\pi(k)` of as many as there are clients, or one of its own in every round where sets change.

    The policy says which channels a set has. Layers are counted from 0, n = ``kept(r, N)`` of N channels:

    - ``"blocks"``: with q = ceil(1 / r) there are :math:`q^2` sets, :math:`i = s \bmod q` and
      :math:`j = \lfloor s / q \rfloor \bmod q`. Layers of even number take the i-th n channels, the others the j-th; a block
      that would overrun is the last n. So an entry between an even and an odd layer lies in exactly one of the sets where r is
      1 / q and n divides N.
    - ``"random"``: the first n of a permutation that is drawn per set and layer, so that sets of a smaller rate lie within
      those of a larger one.
    - ``"rolling"``: n channels from number (t - 1) step mod N on, the first following the last.

    Together these are the thesis' nine methods and FedRolex; ``taxonomy`` says which one a setting is.

    Source: the thesis, equations 5 and 6 (section 2.3) and 12 (section 4.4.3), figure 8, and its released code. "Fixed" means
    there that the sets stay; who holds which of them is drawn anew in every round. HeteroFL's channels were compared with its
    authors' code. Its other parts are ``StaticNorm``, ``MaskedObjective`` and ``HeldClasses``, which ``method=heterofl`` joins.

    Args:
        grouping: ``"one"``, ``"groups"`` or ``"each"``.
        dynamics: ``"fixed"`` or ``"every_round"``.
        policy: ``"blocks"``, ``"random"`` or ``"rolling"``.
        num_groups: G, 1 or larger; of ``"groups"`` alone.
        membership: ``"permuted"`` draws :math:`\pi` anew in every round, ``"fixed"`` takes the client's number; of
            ``"groups"``, and of ``"each"`` with fixed sets.
        balanced: whether :math:`\pi` counts weak clients alone, so that groups differ by one client at most.
        coupled: whether a layer's inputs are the outputs of the layer before, as everywhere but in the thesis' table 6; blocks
            are always coupled.
        step: of the rolling window, in channels, 1 or larger.
    """

    grouping: Annotated[str, Choice("one", "groups", "each")]
    dynamics: Annotated[str, Choice("fixed", "every_round")]
    policy: Annotated[str, Choice("blocks", "random", "rolling")]
    num_groups: Annotated[int, Whole()] = 4
    membership: Annotated[str, Choice("permuted", "fixed")] = "permuted"
    balanced: bool = False
    coupled: bool = True
    step: Annotated[int, Whole()] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy == "blocks" and self.grouping != "one" and (self.grouping, self.dynamics) != ("groups", "fixed"):
            raise ValueError(
                f"Expected blocks in one set or in fixed groups, but got grouping {self.grouping!r} with dynamics "
                f"{self.dynamics!r}: a model has no more blocks than that, so choose submodel=gfm."
            )
        if self.policy == "rolling" and (self.grouping, self.dynamics) != ("one", "every_round"):
            raise ValueError(
                f"Expected a rolling window that all clients share, but got grouping {self.grouping!r} with dynamics "
                f"{self.dynamics!r}: choose submodel=fedrolex."
            )
        if not self.coupled and self.policy != "random":
            raise ValueError(
                f"Expected `submodel.coupled` to be true with policy {self.policy!r}, but got false: take random sets."
            )

    @property
    def taxonomy(self) -> Taxonomy:
        """The method's place among the thesis' nine."""
        code = LETTERS[self.grouping] + LETTERS[self.dynamics] + LETTERS[self.policy]
        return Taxonomy(
            code="-" if "-" in code else code,
            grouping=f"{self.num_groups} groups" if self.grouping == "groups" else self.grouping,
            dynamics=self.dynamics.replace("_", " "),
            policy=self.policy if self.coupled else f"{self.policy}, inputs on their own",
            known_as=PUBLISHED.get(code, "-"),
            again=self._again(),
        )

    def _again(self) -> str:
        if self.policy == "rolling":
            return "1 in N, the channels" if self.step == 1 else f"1 in N / gcd(N, {self.step}), N channels"
        if self.dynamics == "every_round":
            return "1 in q^2, 4 at rate 1/2" if self.policy == "blocks" else "never, but by chance"
        if self.grouping == "one" or self.membership == "fixed":
            return "every"
        return f"about 1 in {self.num_groups}" if self.grouping == "groups" else "1 in K, the clients"

    def channels(self, holder: Holder, sizes: Mapping[str, int]) -> Channels:
        """Return the channels of a client."""
        return {
            group: self._of_layer(holder, layer, size, kept(holder.rate, size))
            for layer, (group, size) in enumerate(sizes.items())
        }

    def _of_layer(self, holder: Holder, layer: int, size: int, number: int) -> NDArray[np.int64]:
        changing, turn = self.dynamics == "every_round", holder.round - 1
        if self.policy == "rolling":
            return np.sort((turn * self.step + np.arange(number)) % size)
        set_number = self._set_of(holder)
        if self.policy == "random":
            keys = (set_number, layer, holder.round) if changing else (set_number, layer)
            return np.sort(rng.stream(holder.seed, "channels", *keys).permutation(size)[:number])
        q = math.ceil(1 / holder.rate - 1e-9)
        block = (turn if changing else set_number) % q**2
        start = min(number * (block % q if layer % 2 == 0 else block // q), size - number)
        return np.arange(start, start + number)

    def _set_of(self, holder: Holder) -> int:
        """Return the number of the client's set in this round."""
        if self.grouping == "one":
            return 0
        if self.grouping == "each" and self.dynamics == "every_round":
            return holder.client_id
        place = self._place_of(holder)
        return place % self.num_groups if self.grouping == "groups" else place

    def _place_of(self, holder: Holder) -> int:
        """Return pi(k)."""
        place, number = holder.client_id, len(holder.rates)
        if self.balanced:
            weak = holder.rates < 1
            place, number = int(weak[:place].sum()), int(weak.sum())
        return int(_permutation(holder.seed, holder.round, number)[place]) if self.membership == "permuted" else place


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, round: int, number: int) -> NDArray[np.int64]:
    return rng.stream(seed, "channel-groups", round).permutation(number)

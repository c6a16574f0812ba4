"""Devices of a few named kinds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.devices.base import BYTES_PER_MEGABIT, Devices, Profiles
from fedfacet.rng import stream

_NEEDED = ("share", "seconds_per_sample", "down_mbps", "up_mbps")
_ENERGY = ("joules_per_sample", "joules_per_byte", "battery_joules", "charge_watts")


@dataclass(eq=False, kw_only=True)
class TierDevices(Devices):
    """Deal devices of a few kinds, in fixed shares of the clients and in a drawn order.

    The kinds of the yaml are examples and not measured, but for the battery: a tenth of 3000 mAh at 3.7 V, which is what the
    released code of FLAME (Cho et al., arXiv:2202.08922) lets training use.

    Args:
        tiers: name of a kind -> ``share`` (larger than 0; shares are divided by their sum), ``seconds_per_sample``,
            ``down_mbps``, ``up_mbps``, each larger than 0, and any of ``joules_per_sample``, ``joules_per_byte``,
            ``battery_joules`` and ``charge_watts``, which otherwise are those of all.
    """

    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tiers:
            raise ValueError("Expected `devices.tiers` to name one kind of device or more, but got none: add one.")
        for name, tier in self.tiers.items():
            known = (*_NEEDED, *_ENERGY)
            needed = ", ".join(_NEEDED)
            if not isinstance(tier, Mapping) or (lacking := [key for key in _NEEDED if key not in tier]):
                missing = lacking[0] if isinstance(tier, Mapping) else _NEEDED[0]
                raise ValueError(f"Expected `devices.tiers.{name}` to have {needed}, but {missing} is missing: add it.")
            if strangers := [key for key in tier if key not in known]:
                raise ValueError(
                    f"Expected `devices.tiers.{name}` to have none but {needed}, {', '.join(_ENERGY)}, but got {strangers[0]}: "
                    "leave it out."
                )
            for key, value in tier.items():
                if value is None and key == "battery_joules":
                    continue
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"Expected `devices.tiers.{name}.{key}` to be a number, but got {value!r}: fix it.")
                positive = key in _NEEDED or key == "battery_joules"
                check_within(f"devices.tiers.{name}.{key}", value, "(0, 3.4e38]" if positive else "[0, 3.4e38]")

    def kinds(self, num_clients: int) -> list[str]:
        """Return the kind of each client's device; each kind's number is its share, rounded."""
        shares = np.cumsum([tier["share"] for tier in self.tiers.values()])
        ranks_K = stream(self.seed, "devices").permutation(num_clients)
        kinds_K = np.searchsorted(shares / shares[-1], (ranks_K + 0.5) / num_clients)
        return [list(self.tiers)[kind] for kind in kinds_K.tolist()]

    def profiles(self, num_clients: int) -> Profiles:
        """Return what each client's kind is able to do."""
        whole = {name: {key: getattr(self, key) for key in _ENERGY} | dict(tier) for name, tier in self.tiers.items()}
        of = [whole[kind] for kind in self.kinds(num_clients)]

        def column(key: str, factor: float = 1.0) -> Any:
            return factor * np.array([math.inf if one[key] is None else float(one[key]) for one in of])

        rates = (column(key, BYTES_PER_MEGABIT) for key in ("down_mbps", "up_mbps"))
        return Profiles(column("seconds_per_sample"), *rates, *map(column, _ENERGY))

"""Selection among clients whose lines are fast, as is common practice."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Within
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import DEVICES, Query, SelectionContext, ServerState


@dataclass(eq=False, kw_only=True)
class BandwidthThresholdSelector(ClientSelector):
    r"""Draw the cohort uniformly from those whose line to the server is not among the slowest.

    Every client tells, once, the seconds :math:`t_k` that it needs to send an update (``UploadSeconds``); they are in inverse
    proportion to the speed of its line. Of the N clients that have told so far, the :math:`\lfloor q N \rfloor` slowest are
    below the threshold (``within_threshold``). The cohort is drawn uniformly from the others who are available; where these are
    fewer than the places, they all take part, and the places that are left are drawn uniformly from the excluded.

    Source: the threshold-based selection against which Zhou et al., Loss Tolerant Federated Learning, arXiv:2105.03591, argue
    in the abstract, since it is biased against whoever has a slow line; thesis, table 4, LT-FL. The threshold as a quantile,
    which suits any devices, and its default are ours.

    Deviations: clients that are as fast as one above the threshold are above it too, so that nobody is excluded where all are
    alike. A client whose answer is not finite, or is negative, counts as infinitely slow.

    A round costs O(K log K), and nothing passes through a model. A client discloses one number, once.

    Args:
        upload_seconds: asked of every client, once.
        excluded_share: q, in [0, 1).
    """

    # LT-FL of the thesis' table 4 is a channel; this is what it replaces.
    taxonomy = Taxonomy("limit round time", "DT", ("θ", "time"), "time", "threshold and probability", "fixed rounds")

    requires = frozenset({DEVICES})

    upload_seconds: Query
    excluded_share: Annotated[float, Within("[0, 1)")] = 0.3

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those drawn from above the threshold, then those drawn from below it."""
        context.ask_once(self.upload_seconds, context.available)
        # Of all who ever told, so that the threshold does not depend on who is away today.
        answers = sorted(context.disclosed[self.upload_seconds.name].items())
        above_N = within_threshold(np.array([seconds for _, seconds in answers], dtype=np.float64), self.excluded_share)
        fast = {client_id for (client_id, _), above in zip(answers, above_N.tolist(), strict=True) if above}
        eligible = [client_id for client_id in context.available if client_id in fast]
        cohort = rng.draw(context.rng, eligible, min(context.num_slots, len(eligible))) if eligible else []
        others = [client_id for client_id in context.available if client_id not in fast]
        return cohort + (
            rng.draw(context.rng, others, context.num_slots - len(cohort)) if len(cohort) < context.num_slots else []
        )


def within_threshold(seconds_N: NDArray[np.float64], excluded_share: float) -> NDArray[np.bool_]:
    r"""Return who is not among the :math:`\lfloor q N \rfloor` slowest, shape (N,).

    Args:
        seconds_N: of an upload, shape (N,), N at least 1.
        excluded_share: q, in [0, 1).

    Example:
        >>> within_threshold(np.array([4.0, 1.0, 9.0, 2.0]), 0.5).tolist()
        [False, True, False, True]
    """
    slowness_N = np.where(np.isfinite(seconds_N) & (seconds_N >= 0), seconds_N, math.inf)
    # A share such as 0.29 of 100 comes to a little less than 29 in floating point.
    number = len(seconds_N) - math.floor(excluded_share * len(seconds_N) + 1e-9)
    within_N: NDArray[np.bool_] = slowness_N <= np.sort(slowness_N)[number - 1]
    return within_N

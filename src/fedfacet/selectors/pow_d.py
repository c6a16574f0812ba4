"""Power-of-choice: the candidates on whose data the global model does worst."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedfacet.arguments import Whole
from fedfacet.errors import SelectionError
from fedfacet.selectors.base import ClientSelector, Taxonomy, drawn_order, warn_of
from fedfacet.types import Query, SelectionContext, ServerState


@dataclass(eq=False, kw_only=True)
class PowDSelector(ClientSelector):
    r"""Draw d candidates in proportion to how much data they have; of these the clients with the highest losses join.

    1. d candidates are drawn without replacement, each next one with probability :math:`n_k / \sum_j n_j` over those left.
    2. Each is sent the global model :math:`\theta` and answers its mean loss :math:`F_k(\theta)`.
    3. The cohort is the :math:`\kappa` candidates with the highest losses, highest first.

    Ties are broken by the round's draw named ``"selection"``. An infinite loss is the highest there is. A NaN ranks below every
    number, whatever its cause (a model that diverged, a client without samples): such a candidate joins only where too few
    others are left, and the log names it.

    Source: Cho et al., Towards understanding biased client selection in federated learning (AISTATS 2022), section 3; thesis,
    section 5.5.4 and appendix A.1.

    Deviations: FedDiverse (section 5.3) and the thesis (section 5.5.4) sort the losses in ascending order and take the first;
    the method's own paper, the thesis' appendix A.1 and the code released with FedDiverse take the highest, and so do we.
    FedDiverse draws the candidates uniformly; the method's own paper draws them by their samples. That code also trains every
    client and gives the others weight zero; here only the cohort trains.

    Args:
        local_loss: asked of the candidates in every round.
        num_samples: asked of every client, once, unless all who are available are candidates anyway.
        num_candidates: d, at least the cohort size; ``None`` makes every available client a candidate, as in FedDiverse's
            table 2 (thesis, table 14).
    """

    # As in the thesis' table 4.
    taxonomy = Taxonomy("efficiency", "DRT", ("θ", "|D|", "loss"), "loss", "ranking", "accuracy reached")

    local_loss: Query
    num_samples: Query
    num_candidates: Annotated[int | None, Whole(1, "a whole number, 1 or larger, or null for all")] = None

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the candidates with the highest losses.

        Raises:
            SelectionError: if there shall be fewer candidates than members of the cohort.
        """
        candidates = self._candidates(context)
        losses = context.ask(self.local_loss, candidates)
        losses_D = np.array([losses[client_id] for client_id in candidates], dtype=np.float64)
        missing_D = np.isnan(losses_D)
        without = [client_id for client_id, missing in zip(candidates, missing_D, strict=True) if missing]
        warn_of(context.round, "loss", without, len(candidates), "candidates is NaN, so they rank last")
        ranked = np.lexsort((context.rng.random(len(candidates)), -losses_D, missing_D))
        return [candidates[position] for position in ranked[: context.num_slots]]

    def _candidates(self, context: SelectionContext) -> list[int]:
        if self.num_candidates is None:
            return list(context.available)
        wanted = max(context.cohort_size, context.num_slots)  # devices may have more asked than are wanted
        if self.num_candidates < wanted:
            raise SelectionError(
                f"Expected at least as many candidates as the cohort has members, {wanted}, but got "
                f"selector.num_candidates={self.num_candidates}: raise it, or give null to ask every client."
            )
        if self.num_candidates >= len(context.available):
            return list(context.available)
        sizes = context.ask_once(self.num_samples, context.available)
        sizes_K = np.fromiter(sizes.values(), dtype=np.float64, count=len(sizes))
        first = drawn_order(sizes_K, context.rng, self.num_candidates)
        return [context.available[position] for position in np.sort(first)]

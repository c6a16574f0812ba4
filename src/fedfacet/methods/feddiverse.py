"""FedDiverse: a cohort whose clients differ in kind."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Choice
from fedfacet.methods.fedavg_first import PretrainedSelector
from fedfacet.selectors.base import Taxonomy
from fedfacet.types import Query, SelectionContext, ServerState

# Columns of a triplet in the order in which they lead a triple, the released code's: spurious correlation, attribute, class.
DIMENSIONS = (2, 1, 0)
_TIE = 1e-6


@dataclass(eq=False, kw_only=True)
class FedDiverseSelector(PretrainedSelector):
    r"""Draw triples of clients: one by a dimension of heterogeneity, its complement, and what is orthogonal to both.

    With the clients' heterogeneity triplets :math:`\Delta^k`, normalised to :math:`u^k = \Delta^k / \lVert\Delta^k\rVert_1`,
    every triple takes, among the clients not yet chosen in this round,

    1. a client drawn with probability :math:`\propto \Delta^k_i` for the leading dimension i,
    2. the client with the smallest :math:`\langle u^{k_p}, u^k \rangle`,
    3. the client with the largest :math:`|\langle u^{k_p} \times u^{k_c}, u^k \rangle|`,

    until the cohort is full; the last triple is cut short. Dimension i starts with the spurious correlation and moves on with
    every triple and every round, to attribute imbalance and then to class imbalance. That is the order of the released code's
    rows; the paper's section 4.2 rotates "(SC, CI, AI)". Each dimension leads as often in either order.

    Source: FedDiverse (arXiv:2504.11216), algorithms 5 and 6; thesis, section 5.4.2 and appendix C.

    Args:
        heterogeneity: what is asked of each client, once: in round T_0 + 1, on the model that pre-training has led to; of a
            client that is away then, when it first comes back.
        pretraining_rounds: T_0, the number of first rounds in which every client takes part; they count among the run's
            rounds.
        pretraining: ``"fedavg"`` (section 4.1: FedAvg averages the updates of these rounds in the aggregator's place, but not
            where the aggregator sends or reads more than models, as SCAFFOLD's does) or ``"ordinary"`` (released code: the
            aggregator does, and clients are asked in round T_0 already, before they train in it, so that T_0 = 1 estimates on
            the initial model as T_0 = 0 does).
        orthogonal: ``"absolute"`` or ``"signed"``, the sign of the projection in step 3.
        normalisation: ``"l1"`` (paper) or ``"l1_then_l2"`` (released code: each dimension divided by its sum over the clients,
            then each client's vector by its l2 norm).
        rotation: ``"triple"`` moves the leading dimension on with every triple and round, ``"round"`` with every round only (as
            algorithm 6, whose index t mod 3 is another order and names no dimension for 0), ``"random"`` permutes the
            dimensions anew each round and moves on with every triple (released code).

    Note: the paper prints the projection in step 3 with its sign. A cross product's sign depends on the order of its factors:
    about half of the third picks would then have no client on the positive side. Only the absolute value gives the shares the
    paper reports (a third of each kind on GSC, GCI and Spawrious4, and all three class-imbalanced clients in every round on
    WaterBirds). Algorithm 5 searches step 3 among all clients but the current pair, which would repeat clients; the text
    excludes those already chosen, and so do we. Where the paper divides by zero: a dimension without mass is drawn uniformly, a
    client with a zero triplet keeps the zero vector, and for a collinear pair step 3 takes the client least similar to both.
    Ties (within 1e-6) are broken at random.

    The paper contradicts itself about pre-training. Algorithm 6 calls algorithm 1, which draws :math:`\kappa` clients a round
    and weights them by :math:`n_k / n`; appendix C has "full participation". Here all take part, as in appendix C and the
    released code, with the aggregator's weights. Algorithm 6 runs T rounds after the T_0 of pre-training; here T_0 of the T are
    for pre-training, as in the released code. During pre-training clients train with the correction that was chosen (FedProx'
    say).

    The first pick of every triple is drawn by the measures as they are disclosed, as algorithm 5 says. The released code does
    so in a round's first triple only, and draws by the normalised ones in later triples; no option here does that.
    """

    taxonomy = Taxonomy(
        *("group fairness", "DSRT", ("θ", "heterogeneity triplet")),
        *("heterogeneity measures", "probability and ranking", "fixed rounds"),
    )

    heterogeneity: Query
    orthogonal: Annotated[str, Choice("absolute", "signed")] = "absolute"
    normalisation: Annotated[str, Choice("l1", "l1_then_l2")] = "l1"
    rotation: Annotated[str, Choice("triple", "round", "random")] = "triple"

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the cohort of this round: all available clients while pre-training."""
        if self.takes_everybody(context.round):
            return list(context.available)
        learn = getattr(self.heterogeneity, "learn", None)  # of a question that others come before
        triplets = context.ask_once(learn(context) if learn else self.heterogeneity, context.available)
        if context.round <= self.pretraining_rounds:
            return list(context.available)
        triplets_KD = np.array(list(triplets.values()), dtype=np.float64)
        if self.rotation == "random":
            # The columns themselves, as in the released code: an odd permutation also turns the cross product's sign.
            triplets_KD = triplets_KD[:, context.rng.permutation(3)]
        leading = self._leading_dimensions(context)
        positions = diverse_order(triplets_KD, context.num_slots, leading, context.rng, self.orthogonal, self.normalisation)
        return [context.available[position] for position in positions]

    def _leading_dimensions(self, context: SelectionContext) -> Iterator[int]:
        turn = 0 if self.rotation == "random" else context.round - self.pretraining_rounds - 1
        while True:
            yield DIMENSIONS[turn % 3]
            if self.rotation != "round":
                turn += 1


def diverse_order(
    triplets_KD: NDArray[np.float64],
    size: int,
    leading: Iterator[int],
    rng: np.random.Generator,
    orthogonal: str = "absolute",
    normalisation: str = "l1",
) -> list[int]:
    """Return ``size`` distinct rows of ``triplets_KD`` (shape (K, 3)) in the order in which FedDiverse picks them.

    ``leading`` gives the column that leads each triple; ``rng`` draws the first of each triple and breaks ties. ``orthogonal``
    and ``normalisation`` are as in ``FedDiverseSelector``.
    """
    unit_KD = _normalised(triplets_KD, normalisation)
    left = np.ones(len(triplets_KD), dtype=bool)
    chosen: list[int] = []

    def take(scores_K: NDArray[np.float64]) -> int:
        candidates = np.flatnonzero(left)
        scores = scores_K[candidates]
        pick = int(rng.choice(candidates[scores >= scores.max() - _TIE]))
        left[pick] = False
        chosen.append(pick)
        return pick

    while len(chosen) < size:
        mass_K = np.where(left, triplets_KD[:, next(leading)], 0.0)
        weights_K = mass_K if mass_K.sum() > 0 else left.astype(np.float64)
        first = int(rng.choice(len(left), p=weights_K / weights_K.sum()))
        left[first] = False
        chosen.append(first)
        if len(chosen) == size:
            break
        similarity_K = unit_KD @ unit_KD[first]
        second = take(-similarity_K)
        if len(chosen) == size:
            break
        axis = np.cross(unit_KD[first], unit_KD[second])
        length = float(np.linalg.norm(axis))
        if length > _TIE:
            projection_K = unit_KD @ (axis / length)
            take(np.abs(projection_K) if orthogonal == "absolute" else projection_K)
        else:
            take(-(similarity_K + unit_KD @ unit_KD[second]))
    return chosen


def _normalised(triplets_KD: NDArray[np.float64], normalisation: str) -> NDArray[np.float64]:
    if normalisation == "l1":
        sums = triplets_KD.sum(axis=1, keepdims=True)
    else:
        totals = triplets_KD.sum(axis=0, keepdims=True)
        triplets_KD = np.divide(triplets_KD, totals, out=np.zeros_like(triplets_KD), where=totals > 0)
        sums = np.linalg.norm(triplets_KD, axis=1, keepdims=True)
    normalised_KD: NDArray[np.float64] = np.divide(triplets_KD, sums, out=np.zeros_like(triplets_KD), where=sums > 0)
    return normalised_KD

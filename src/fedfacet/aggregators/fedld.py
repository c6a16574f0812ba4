"""FedLD's aggregation: updates are rebuilt from the directions that most clients share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Within
from fedfacet.types import ClientUpdate, ServerState, State

_RANK_TOLERANCE = 1e-14
"""Times m and the largest eigenvalue: smaller ones are roundings of float32 updates (squared) or of the decomposition."""

_NO_PROJECTION = 1e-6
"""Times an update's length: a shorter projection is a rounding, and has no direction that could be stretched."""


@dataclass(eq=False, kw_only=True)
class FedLD(Aggregator):
    r"""Project the updates on their principal directions, stretch them to their old lengths, then average.

    With :math:`G = [g_1 \dots g_m]` the updates and :math:`\lambda_z, v_z` eigenvalues and unit eigenvectors of
    :math:`\frac{1}{m} G G^\top` in descending order, the first :math:`L = \max(1, \lfloor 0.8 m \rfloor)` give

    .. math::
        g'_{i,l} = \langle g_i, v_l \rangle v_l, \qquad
        g_i^{\text{revise}} = \sum_{l=1}^L \frac{\lVert g_i \rVert}{\lVert g'_{i,l} \rVert} \omega_l \, g'_{i,l}, \qquad
        \bar g = \sum_i p_i \, g_i^{\text{revise}} \Big/ \sum_i p_i .

    The eigenvectors are :math:`v_z = G e_z / \lVert G e_z \rVert` with :math:`e_z` those of the m x m matrix
    :math:`G^\top G`, so that every :math:`g_i^{\text{revise}}`, and their mean, is a combination of the updates: nothing of
    the model's size is decomposed. All updates of a round are held at once.

    Source: FedLD (Zeng et al., MICCAI 2024), section 2.4, equations 4-7.

    Deviation: equation 7 weights axis l by :math:`\lambda_l / \lVert \lambda_l \rVert`, which is 1 for a scalar; here
    :math:`\omega_l = \lambda_l / \sum_z \lambda_z`, as in the released code. L is never above the numerical rank; an axis on
    which an update has no projection contributes nothing (the code divides by 0); with :math:`\lVert G \rVert = 0` the mean
    is 0. Equation 6, which turns the eigenvectors towards the mean update, is left out: the projections on v and on -v are the
    same vector. Floating-point buffers are averaged plainly, while the released code decomposes them like parameters.

    Args:
        kept_share: L / m in (0, 1].
        over: ``"all"`` divides by the sum of all eigenvalues, ``"kept"`` by that of the first L, so that the weights add up
            to 1; with ``length_correction="total"`` it makes no difference.
        length_correction: ``"per_axis"`` as above (equation 7), by which an update's length changes to
            :math:`\lVert g_i \rVert \sqrt{\sum_l \omega_l^2}`; ``"total"`` stretches
            :math:`\sum_l \omega_l \, g'_{i,l}` to the length :math:`\lVert g_i \rVert`, which is what the text says.
        scope: ``"model"`` takes an update as one vector (the paper), ``"tensor"`` every tensor by itself (the released code).
        weighting: ``"samples"`` (p_i = n_i, the paper) or ``"equal"`` (p_i = 1, the released code). The eigenvectors know no
            weights.

    Note:
        Where eigenvalues are equal, the directions are not determined, and with them the revised updates.
    """

    kept_share: Annotated[float, Within("(0, 1]")] = 0.8
    over: Annotated[str, Choice("all", "kept")] = "all"
    length_correction: Annotated[str, Choice("per_axis", "total")] = "per_axis"
    scope: Annotated[str, Choice("model", "tensor")] = "model"
    weighting: str = "samples"

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the model moved by the mean of the revised updates."""
        updates = list(updates)
        weights = np.array([self.weight(update) for update in updates])
        moved: State = {}
        for parts in self._parts([update.delta for update in updates]):
            revised = self._revised(state.gram(parts))
            moved |= state.combination(parts, weights / weights.sum() @ revised)
        _, buffers = self.average(replace(update, delta={}) for update in updates)
        return server, state.add(model, moved | buffers)

    def _parts(self, deltas: Sequence[State]) -> Iterator[Sequence[State]]:
        """Yield what is decomposed at a time."""
        if self.scope == "model":
            yield deltas
        else:
            for name in deltas[0]:
                yield [{name: delta[name]} for delta in deltas]

    def _revised(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the revised updates as combinations of the updates: row i has the coefficients of client i's."""
        values, vectors = np.linalg.eigh(gram)
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int((values > len(gram) * _RANK_TOLERANCE * values[0]).sum()) if values[0] > 0 else 0
        # A part of a hundred-millionth more, so that 0.29 * 100 is 29.
        count = min(max(1, int(self.kept_share * len(gram) + 1e-8)), rank)
        if not count:
            return np.zeros_like(gram)
        kept, vectors = values[:count], vectors[:, :count]
        omega = kept / (values[:rank].sum() if self.over == "all" else kept.sum())
        lengths = np.sqrt(np.diag(gram))[:, None]
        projections = vectors * np.sqrt(kept)
        projections[np.abs(projections) <= _NO_PROJECTION * lengths] = 0.0
        if self.length_correction == "per_axis":
            revised = lengths * omega * np.sign(projections)
        else:
            revised = omega * projections
            shrunk = np.linalg.norm(revised, axis=1, keepdims=True)
            revised *= np.divide(lengths, shrunk, out=np.zeros_like(lengths), where=shrunk > 0)
        coefficients: NDArray[np.float64] = revised @ (vectors / np.sqrt(kept)).T
        return coefficients

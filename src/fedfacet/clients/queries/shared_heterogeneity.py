"""Clients' heterogeneity triplets by an attribute that they learn together, without attribute labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedfacet import rng
from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import check_choice
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.clustered_heterogeneity import image_views
from fedfacet.clients.queries.noise import TRIPLET, checked_multiplier, noisy_triplet
from fedfacet.errors import ConfigError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Answer, SelectionContext

Floats = NDArray[np.float64]

VIEWS = ("images", "features")
_BINS = 64
_REACH = 4.0
"""Standard deviations of the projections to each side of their mean that the bins cover."""

_CUTS = (-1.0, 0.0, 1.0)
"""Between groups of clients, in standard deviations of a class's mean between clients."""

_RIDGE = 1e-2
"""Of each feature's variance: no direction counts as tighter than this within clients."""

_CONSTANT = 1e-6
"""Of the largest deviation of a feature: one that varies less is left out, as of a unit that is never active."""

_WIDEST = 128
"""Features, at most, that moments are of: these grow with their square."""

_LEAST_STRENGTH = 1.2
_ITERATIONS = 200
_OWN_ITERATIONS = 50
_NARROWEST = 1e-4
"""Of the projections' variance: no component is narrower than this."""


@dataclass(eq=False, kw_only=True)
class SharedHeterogeneity(Query):
    r"""Find what varies between clients within a class, and disclose the triplet by it.

    Samples of one class differ between clients by their attribute values. A client's class mean is a mixture of the values'
    means, in shares that only this client has. So the attribute is what class means vary along more than chance allows.

    1. Every client sends moments of each view of its samples (``FeatureMoments``). Their sums over clients give two
       covariances: W within clients and classes, and B of class means between clients. The direction v maximises
       :math:`v^\top B v / v^\top W v`, Fisher's discriminant of clients. Of N samples, D features, m degrees of freedom between
       clients and n within, chance gives a quotient of :math:`\frac{m}{N} \left(\frac{1 + \sqrt{D/m + D/n - D^2/(mn)}}{1 -
       D/n}\right)^2`. The view whose quotient exceeds this most is taken, and none below 1.2 times chance.
    2. Every client sends a histogram of each class along v, in one of four groups by its class mean
       (``ProjectionHistograms``). To their sums the server fits two normal components per class by EM. The components' shares
       differ by group, which tells them apart where one histogram would not.
    3. Every client is sent v and the components. It finds its shares of them by EM, and they make its interaction matrix. It
       sends the triplet.

    Without an attribute found the triplet is neutral: AI = SC = 0. A client that comes later is asked for step 3 only. Where v
    is of features, its triplet is neutral, since the model has changed. The server needs no more than sums in steps 1 and 2,
    so secure aggregation could hide what each client sends. Here clients send it as it is, and the ledger says so. Step 2
    tells a client's class counts.

    Views are ``image_statistics`` where inputs are images, and what the model's ``features(x)`` makes of all samples. Of more
    than 128 features the view has 128 random projections, the same for all clients, because moments grow with their square.

    Source: none. The method is ours, past FedDiverse (arXiv:2504.11216), algorithms 2 to 4, where each client estimates by
    itself. The quotient is Fisher's (Annals of Eugenics 7, 1936), its limit under chance Wachter's (Annals of Statistics 8,
    1980). results/estimators.md compares the estimators.

    Limits: two attribute values. Where clients differ in something else, such as a camera, the method finds that.

    Args:
        noise_multiplier: z of Gaussian noise on the triplet, as in ``noisy_triplet``; ``None`` for none. The moments and
            histograms have none, so that no epsilon covers this way of asking.
    """

    name = "heterogeneity"
    kind = "triplet"
    form = TRIPLET
    reads = frozenset({"x", "y"})
    needs_model = False

    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        checked_multiplier(self.noise_multiplier)

    def check(self, model: nn.Module) -> None:
        """Refuse a model without ``features(x)``."""
        if not callable(getattr(model, "features", None)):
            raise ConfigError(
                f"Expected a model with `features(x)` for heterogeneity=shared, but {type(model).__name__} lacks it: add it, "
                "or choose heterogeneity=true."
            )

    def learn(self, context: SelectionContext) -> "SharedHeterogeneity":
        """Return this question with the attribute in it, which steps 1 and 2 find where somebody has not answered yet."""
        answered = context.disclosed.get(self.name, {})
        if all(client_id in answered for client_id in context.available):
            return self
        found = [Discriminant.of(view, _answers(FeatureMoments(view=view), context).values()) for view in VIEWS]
        best = max(found, key=lambda one: one.strength)
        if best.strength < _LEAST_STRENGTH or (answered and best.view == "features"):  # the model is another one by now
            return self
        question = ProjectionHistograms(
            view=best.view, direction=best.direction.tolist(), edges=list(best.edges), cuts=best.cuts
        )
        total = np.sum([np.array(one) for one in _answers(question, context).values()], axis=0)
        middles = np.linspace(best.edges[0], best.edges[1], 2 * _BINS + 1)[1::2]
        components = [fitted(grouped.reshape(-1, _BINS), middles) for grouped in total]
        return SharedTriplet(
            noise_multiplier=self.noise_multiplier, view=best.view, direction=question.direction, components=components
        )

    def answer(self, context: QueryContext) -> Answer:
        """Return the estimated [class imbalance, attribute imbalance, spurious correlation]."""
        triplet = noisy_triplet(self.estimate(context).triplet, self.noise_multiplier, context, self.name)
        return Answer(value=triplet, floats_up=3, samples=len(context.data) if self.needs_model else 0)

    def estimate(self, context: QueryContext) -> InteractionMatrix:
        """Return the estimated interaction matrix, shape (Y, 2); it stays with the client."""
        counts = np.bincount(context.data.y, minlength=context.data.dataset.num_classes)
        return InteractionMatrix(np.repeat(counts[:, None] / 2, 2, axis=1))


@dataclass(eq=False, kw_only=True)
class SharedTriplet(SharedHeterogeneity):
    """Ask for the triplet by an attribute that was found: step 3 of ``SharedHeterogeneity``.

    Args:
        noise_multiplier: as there.
        view: of ``VIEWS``.
        direction: v, D numbers; none for the neutral answer.
        components: for each class the two means, the lower first, and the two standard deviations, shape (Y, 4).
    """

    view: str = "features"
    direction: Sequence[float] = field(default_factory=list)
    components: Sequence[Sequence[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs_model = _of_features(self.view)
        self.floats_down = len(self.direction) + sum(map(len, self.components))

    def estimate(self, context: QueryContext) -> InteractionMatrix:
        """Return the estimated interaction matrix, shape (Y, 2)."""
        counts = super().estimate(context).counts.copy()
        if len(self.direction):
            y, along = context.data.y, _view(context, self.view) @ np.array(self.direction)
            for own in np.unique(y):
                counts[own] = (y == own).sum() * own_shares(along[y == own], self.components[own])
        return InteractionMatrix(counts)


@dataclass(eq=False, kw_only=True)
class FeatureMoments(Query):
    """Ask for the moments of a view within and between classes, whose sums over clients tell along what these differ.

    The answer has three tables of shape (max(Y, D), 1 + D). The first has in row y the number of the class's samples and their
    mean. The second holds, after a 0, the scatter of samples around their class's mean. The third holds, after a 0, the sum
    over classes of n times the mean's outer product with itself. Rows that are left over are 0. So is everything where
    samples are no images.

    Args:
        view: of ``VIEWS``.
    """

    name = "feature_moments"
    kind = "class_means"
    form = AnswerForm(shape=(3, None, None))
    reads = frozenset({"x", "y"})
    needs_model = True

    view: str = "features"

    def __post_init__(self) -> None:
        self.name = f"feature_moments_{self.view}"
        self.needs_model = _of_features(self.view)

    def answer(self, context: QueryContext) -> Answer:
        """Return the moments."""
        y, num_classes = context.data.y, context.data.dataset.num_classes
        z_ND = _view(context, self.view)
        width = z_ND.shape[1]
        counts = np.bincount(y, minlength=num_classes)
        means = np.stack([z_ND[y == own].mean(axis=0) if counts[own] else np.zeros(width) for own in range(num_classes)])
        around = z_ND - means[y]
        tables = np.zeros((3, max(num_classes, width), 1 + width))
        tables[0, :num_classes] = np.column_stack([counts, means])
        tables[1, :width, 1:] = around.T @ around
        tables[2, :width, 1:] = (means * counts[:, None]).T @ means
        return Answer(tables.tolist(), floats_up=tables.size, samples=len(y) if self.needs_model else 0)


@dataclass(eq=False, kw_only=True)
class ProjectionHistograms(Query):
    """Ask how many samples of each class lie where along a direction.

    The answer has a row per class and a column per group and bin, of four groups and 64 bins. A client counts its samples in
    the columns of one group, the one that its class mean falls into. Samples outside the bins count for the outermost.

    Args:
        view: of ``VIEWS``.
        direction: D numbers.
        edges: of all bins together, the lower and the upper.
        cuts: per class the three bounds between the groups.
    """

    name = "projection_histograms"
    kind = "class_histograms"
    form = AnswerForm(shape=("Y", _BINS * (len(_CUTS) + 1)), low=0, counts=...)
    reads = frozenset({"x", "y"})
    needs_model = True

    view: str = "features"
    direction: Sequence[float] = field(default_factory=list)
    edges: Sequence[float] = field(default_factory=list)
    cuts: Sequence[Sequence[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.needs_model = _of_features(self.view)
        self.floats_down = len(self.direction) + len(self.edges) + sum(map(len, self.cuts))

    def answer(self, context: QueryContext) -> Answer:
        """Return the histograms."""
        along, y = _view(context, self.view) @ np.array(self.direction), context.data.y
        low, high = self.edges
        table = np.zeros((context.data.dataset.num_classes, len(_CUTS) + 1, _BINS))
        for own in np.unique(y):
            ours = along[y == own]
            group = np.searchsorted(self.cuts[own], ours.mean())
            table[own, group] = np.histogram(np.clip(ours, low, high), _BINS, range=(low, high))[0]
        samples = len(y) if self.needs_model else 0
        return Answer(table.reshape(len(table), -1).tolist(), floats_up=table.size, samples=samples)


@dataclass(frozen=True, slots=True)
class Discriminant:
    """The direction along which clients' class means differ most, of a view; of strength 0 where there is none.

    Attributes:
        view: of ``VIEWS``.
        strength: of the largest quotient, in units of what chance gives.
        direction: v, shape (D,).
        edges: the least and the largest projection that bins cover.
        cuts: per class three bounds between groups of clients.
    """

    view: str
    strength: float = 0.0
    direction: Floats = field(default_factory=lambda: np.empty(0))
    edges: tuple[float, float] = (0.0, 0.0)
    cuts: Sequence[Sequence[float]] = ()

    @classmethod
    def of(cls, view: str, answers: Iterable[Any]) -> "Discriminant":
        """Return it by the answers of clients to ``FeatureMoments``."""
        moments_KTRC = np.array(list(answers), dtype=np.float64)
        width = moments_KTRC.shape[3] - 1
        counts_KY, means_KYD = moments_KTRC[:, 0, :, 0], moments_KTRC[:, 0, :, 1:]
        within, squares = moments_KTRC[:, 1:, :width, 1:].sum(axis=0)
        counts_Y = counts_KY.sum(axis=0)
        means_YD = np.einsum("ky,kyd->yd", counts_KY, means_KYD) / np.maximum(counts_Y, 1)[:, None]
        samples, cells, classes = counts_Y.sum(), (counts_KY > 0).sum(), (counts_Y > 0).sum()
        if not width or cells <= classes or samples <= cells + width:
            return cls(view)
        between = (squares - (means_YD * counts_Y[:, None]).T @ means_YD) / samples
        within /= samples - cells
        middle = counts_Y @ means_YD / samples
        spread = within + (squares / samples - np.outer(middle, middle))
        scales = np.sqrt(np.maximum(np.diag(spread), 0.0))
        kept = np.flatnonzero(scales > _CONSTANT * scales.max())
        if not len(kept):
            return cls(view)
        units = np.outer(scales[kept], scales[kept])
        values, vectors = np.linalg.eigh(within[np.ix_(kept, kept)] / units + _RIDGE * np.eye(len(kept)))
        root = vectors * values**-0.5
        quotients, turned = np.linalg.eigh(root.T @ (between[np.ix_(kept, kept)] / units) @ root)
        direction = np.zeros(width)
        direction[kept] = root @ turned[:, -1] / scales[kept]
        direction *= np.sign(direction[np.abs(direction).argmax()])
        chance = _edge(len(kept), cells - classes, samples - cells) * (cells - classes) / samples
        reach = _REACH * float(np.sqrt(direction @ spread @ direction))
        apart = np.sqrt(max(0.0, direction @ between @ direction))
        cuts = (means_YD @ direction)[:, None] + np.array(_CUTS) * apart
        centre = float(middle @ direction)
        return cls(view, float(quotients[-1] / chance), direction, (centre - reach, centre + reach), cuts.tolist())


def _edge(features: float, between: float, within: float) -> float:
    """Return Wachter's upper edge, of two covariances with these degrees of freedom; fewer features than ``within``."""
    over, under = features / between, features / within
    return float(((1 + np.sqrt(over + under - over * under)) / (1 - under)) ** 2)


def fitted(counts_GB: Floats, middles_B: Floats) -> list[float]:
    """Return two normal components of grouped histograms, by EM: the lower and the upper mean, and their deviations.

    Args:
        counts_GB: of each group, which has other shares of the components than other groups. Shape (G, B).
        middles_B: the middle of each bin.

    Example:
        >>> import numpy as np
        >>> counts = np.array([[9.0, 0, 0, 1], [1, 0, 0, 9]])
        >>> np.round(fitted(counts, np.arange(4.0)), 2).tolist()
        [0.0, 3.0, 0.02, 0.02]
    """
    counts_GB = counts_GB[counts_GB.sum(axis=1) > 0]
    if not len(counts_GB):
        return [0.0, 0.0, 1.0, 1.0]
    shares_B = counts_GB.sum(axis=0) / counts_GB.sum()
    variance = float(shares_B @ (middles_B - shares_B @ middles_B) ** 2) or 1.0
    places = counts_GB @ middles_B / counts_GB.sum(axis=1)
    means = np.array([places.min(), places.max()])
    if len(places) == 1:
        means += np.sqrt(variance) * np.array([-1, 1])
    deviations, shares_GA = np.full(2, np.sqrt(variance) / 2), np.full((len(counts_GB), 2), 0.5)
    for _ in range(_ITERATIONS):
        held_GBA = counts_GB[:, :, None] * _parts(middles_B, means, deviations, shares_GA)
        shares_GA = (held_GBA.sum(axis=1) + 0.5) / (counts_GB.sum(axis=1, keepdims=True) + 1)
        mass = held_GBA.sum(axis=(0, 1)) + 1e-9
        means = (held_GBA.sum(axis=0) * middles_B[:, None]).sum(axis=0) / mass
        squares = (held_GBA.sum(axis=0) * (middles_B[:, None] - means) ** 2).sum(axis=0) / mass
        deviations = np.sqrt(np.maximum(squares, _NARROWEST * variance))
    order = np.argsort(means)
    return [*means[order].tolist(), *deviations[order].tolist()]


def own_shares(along_N: Floats, components: Sequence[float]) -> Floats:
    """Return a client's shares of two normal components, by EM with the components as they are; shape (2,).

    Args:
        along_N: the projections of its samples of the class, one or more.
        components: the two means and the two deviations.

    Example:
        >>> own_shares(np.array([0.0, 0.1, 0.2, 5.0]), [0.0, 5.0, 0.5, 0.5]).round(2).tolist()
        [0.75, 0.25]
    """
    means, deviations, shares = np.array(components[:2]), np.array(components[2:]), np.full((1, 2), 0.5)
    held_NA = np.empty((len(along_N), 2))
    for _ in range(_OWN_ITERATIONS):
        held_NA = _parts(along_N, means, deviations, shares)[0]
        shares = (held_NA.sum(axis=0, keepdims=True) + 0.5) / (len(along_N) + 1)
    share: Floats = held_NA.mean(axis=0)
    return share


def _parts(along_N: Floats, means: Floats, deviations: Floats, shares_GA: Floats) -> Floats:
    """Return how likely each value is of each component, given each group's shares; shape (G, N, 2)."""
    logs_NA = -0.5 * ((along_N[:, None] - means) / deviations) ** 2 - np.log(deviations)
    logs_GNA = logs_NA + np.log(shares_GA + 1e-9)[:, None]
    parts_GNA: Floats = np.exp(logs_GNA - logs_GNA.max(axis=2, keepdims=True))
    parts_GNA /= parts_GNA.sum(axis=2, keepdims=True)
    return parts_GNA


def _answers(query: Query, context: SelectionContext) -> Mapping[int, Any]:
    """Return the answers of those who were asked first; later ones change nothing of what was learnt."""
    known = context.disclosed.get(query.name)
    return known if known else context.ask(query, context.available)


def _of_features(view: str) -> bool:
    check_choice("view", view, VIEWS)
    return view == "features"


def _view(context: QueryContext, view: str) -> Floats:
    """Return what a view says of all samples, shape (n_k, D); no column for images where samples are none."""
    if view == "images":
        return np.concatenate([np.empty((len(context.data), 0)), *image_views(context)], axis=1)
    context.model.eval()
    with torch.no_grad():
        parts = [context.model.features(batch.x).flatten(1) for batch in context.data.batches()]  # type: ignore[operator]
    return _narrowed(torch.cat(parts).double().cpu().numpy())


def _narrowed(z_ND: Floats) -> Floats:
    """Return more features than moments can be of as their projections onto random directions, the same for all clients."""
    if z_ND.shape[1] <= _WIDEST:
        return z_ND
    directions = rng.stream(0, "narrowed-features", z_ND.shape[1]).standard_normal((z_ND.shape[1], _WIDEST))
    narrowed: Floats = z_ND @ directions / np.sqrt(_WIDEST)
    return narrowed

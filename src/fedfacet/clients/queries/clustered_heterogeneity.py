"""A client's heterogeneity triplet from clusters of its own features, without attribute labels."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedfacet import rng
from fedfacet.arguments import check_whole, check_within
from fedfacet.clients.attribute_clusters import cluster_attributes
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.estimated_heterogeneity import train_biased
from fedfacet.clients.queries.noise import TRIPLET, checked_multiplier, noisy_triplet
from fedfacet.errors import ConfigError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Answer

_MOST_IMAGES = 256
_STRIDES = (1, 2, 4)
_GRID = 4
# Of pixels in [0, 1]: less than this is as good as nothing, and keeps logarithms finite.
_DARK = 0.02


@dataclass(eq=False, kw_only=True)
class ClusteredHeterogeneity(Query):
    """Estimate the interaction matrix from clusters that all classes share, and disclose its triplet only.

    1. A biased model starts from the broadcast weights and takes ``bias_steps`` steps on the generalised cross entropy, over
       all classes at once.
    2. All samples pass through it once. Views of them are what its convolutions and linear layers put out, at up to ``depths``
       depths from the first layer to ``reach`` of the way to the features. Of a layer with positions (pixels, tokens), mean
       and standard deviation over them are taken, and of every sample a vector of length 1. Of images, ``image_statistics``
       are views too: a mean over positions does not show where something lies.
    3. ``cluster_attributes`` finds the labelling, of any view, that explains best what varies within the classes by a few
       values that mean the same in all of them; or none.
    4. A client that finds no labelling has no evidence, and gives the neutral answer: values as even as can be in every class.
       Its attribute imbalance and spurious correlation are 0.

    Three floats leave the client. Nothing here knows what the attribute is; the largest number of its values is a setting.

    Source: past FedDiverse (arXiv:2504.11216), whose biased model this is (algorithm 2) and whose estimate in two steps
    (algorithms 3 and 4) it replaces. There, "majority" is what the biased model gets right; a model that learns a class by its
    shape gets all of it right, whatever the attribute, and the attribute's imbalance is lost. What distinguishes an attribute
    need not be what the model errs by: it is there in its features. The last of these are left out, because they are made to
    lie in a cluster per class, of which the samples that the model confuses look like a minority.

    Args:
        bias_steps: tau_bias; 0 looks at the broadcast model as it came.
        q: of the generalised cross entropy, in (0, 1].
        class_balanced: draw the biased model's batches with every class equally likely.
        depths: how many views, 1 or larger; 1 is the last alone.
        reach: how deep the last view lies, from 0 (the first layer) to 1 (the features).
        max_attributes: the largest number of attribute values looked for, 2 or larger; the attribute imbalance is
            1 - H(A) / log(max_attributes), so it should be the number of values that there are in the federation.
        max_components: principal components of a view, 1 or larger.
        noise_multiplier: z of Gaussian noise on the triplet, as in ``noisy_triplet``; ``None`` for none.

    Note:
        A client that does hold a single attribute value finds none either, and gives the neutral answer too, or nearly: of 40
        digits of one class and colour it found an even cut, AI up to 0.19, in 5 of 12 draws.
        results/archive/estimators_alone.md tells on which attributes this is nearer to the truth than
        ``EstimatedHeterogeneity``, and on which nothing is found.
    """

    name = "heterogeneity"
    kind = "triplet"
    form = TRIPLET
    reads = frozenset({"x", "y"})
    needs_model = True

    bias_steps: int = 50
    q: float = 0.3
    class_balanced: bool = True
    depths: int = 4
    reach: float = 0.5
    max_attributes: int = 2
    max_components: int = 5
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        checked_multiplier(self.noise_multiplier)
        check_whole("bias_steps", self.bias_steps, 0)
        check_whole("depths", self.depths)
        check_whole("max_attributes", self.max_attributes, 2)
        check_whole("max_components", self.max_components)
        check_within("q", self.q, "(0, 1]")
        check_within("reach", self.reach, "[0, 1]")

    def check(self, model: nn.Module) -> None:
        """Refuse a model without ``features(x)``."""
        if not callable(getattr(model, "features", None)):
            raise ConfigError(
                f"Expected a model with `features(x)`, which heterogeneity=clustered needs, but {type(model).__name__} lacks "
                "it: add it, or choose heterogeneity=true, or a selector that does not ask for heterogeneity "
                "(selector=uniform, say)."
            )

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier, for samples as for clients; see ``Query.counted``."""
        return self.noise_multiplier

    def answer(self, context: QueryContext) -> Answer:
        """Return the estimated [class imbalance, attribute imbalance, spurious correlation]."""
        samples = len(context.data) + self.bias_steps * min(context.batch_size, len(context.data))
        triplet = noisy_triplet(self.estimate(context).triplet, self.noise_multiplier, context, self.name)
        return Answer(value=triplet, floats_up=3, samples=samples)

    def estimate(self, context: QueryContext) -> InteractionMatrix:
        """Return the estimated interaction matrix, shape (Y, max_attributes); it stays with the client."""
        y = context.data.y
        model = copy.deepcopy(context.model)
        with rng.forked(context.seed, "estimate", context.round, context.client_id, device=context.data.device):
            if self.bias_steps:
                train_biased(context, model, y, steps=self.bias_steps, q=self.q, class_balanced=self.class_balanced)
            views = _views(context, model, self.depths, self.reach)
        labels = cluster_attributes(
            views,
            y,
            max_attributes=self.max_attributes,
            max_components=self.max_components,
            random_state=int(context.stream("attribute-clusters").integers(2**31)),
        )
        num_classes = context.data.dataset.num_classes
        if not labels.any():
            even = np.bincount(y, minlength=num_classes)[:, None] / self.max_attributes
            return InteractionMatrix(np.repeat(even, self.max_attributes, axis=1))
        return InteractionMatrix.from_labels(y, labels, num_classes, self.max_attributes)


def _views(context: QueryContext, model: nn.Module, depths: int, reach: float) -> list[NDArray[np.float64]]:
    """Return what layers of the model say of all samples, each of shape (n_k, D), the deepest last."""
    model.eval()
    parts: list[list[NDArray[np.float64]]] = []
    chosen: NDArray[np.int64] | None = None
    with torch.no_grad(), _recorded(model) as seen:
        for batch in context.data.batches():
            seen.clear()
            features = model.features(batch.x)  # type: ignore[operator]
            outputs = [*seen, features]
            if chosen is None:
                last = int(reach * (len(outputs) - 1))
                chosen = np.unique(np.rint(np.linspace(last, 0, depths)).astype(np.int64))
                parts = [[] for _ in chosen]
            for part, position in zip(parts, chosen, strict=True):
                part.append(F.normalize(_pooled(outputs[position])).double().cpu().numpy())
    return [np.concatenate(part) for part in parts] + image_views(context)


def image_views(context: QueryContext) -> list[NDArray[np.float64]]:
    """Return what statistics say of all samples, each of shape (n_k, D); nothing where the samples are no images."""
    dataset, indices = context.data.dataset, context.data.indices
    if dataset.mean is None:
        return []
    parts = [
        image_statistics(dataset.inputs.fetch(indices[start : start + _MOST_IMAGES]).to(torch.float32) / 255)
        for start in range(0, len(indices), _MOST_IMAGES)
    ]
    return [torch.cat(view).double().numpy() for view in zip(*parts, strict=True)]


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Lend a list to which every convolution and linear layer appends what it puts out, one row per sample."""
    seen: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Positions go last, as a convolution has them: a linear layer puts its width there.
        seen.append(output.movedim(-1, 1) if isinstance(layer, nn.Linear) and output.dim() > 2 else output)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _pooled(output: Tensor) -> Tensor:
    if output.dim() <= 2:
        return output.flatten(1)
    positions = output.flatten(2)
    return torch.cat([positions.mean(dim=2), positions.std(dim=2, correction=0)], dim=1)


def image_statistics(pixels: Tensor) -> list[Tensor]:
    r"""Return views of images, each of shape (B, D), that tell apart how images were made and not what they show.

    - colours, of more channels than one: by how much every channel's share in the light exceeds an even one, and the logarithm
      of how colourful the image is;
    - texture: :math:`\log(\epsilon^2 + E)` of the mean square E of differences in luminance between pixels 1, 2 and 4 apart,
      across and along;
    - layout: the luminance, which is the mean of the channels, of 4 x 4 fields.

    Args:
        pixels: in [0, 1], shape (B, C, H, W).
    """
    luminance = pixels.mean(dim=1)
    flat = luminance.flatten(1)
    views = [F.adaptive_avg_pool2d(luminance, _GRID).flatten(1)]
    energies = []
    for stride in _STRIDES:
        for dim in (1, 2):
            if luminance.shape[dim] > stride:
                length = luminance.shape[dim] - stride
                difference = luminance.narrow(dim, stride, length) - luminance.narrow(dim, 0, length)
                energies.append(difference.square().flatten(1).mean(dim=1))
    if energies:
        views.append(torch.log(_DARK**2 + torch.stack(energies, dim=1)))
    if pixels.shape[1] > 1:
        light = flat.sum(dim=1, keepdim=True) + _DARK
        beyond = pixels - luminance[:, None]
        colourful = beyond.abs().mean(dim=1).flatten(1).sum(dim=1, keepdim=True)
        views.append(torch.cat([beyond.flatten(2).sum(dim=2) / light, torch.log(_DARK + colourful / light)], dim=1))
    return views

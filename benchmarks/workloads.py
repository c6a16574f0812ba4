"""The workloads that engines and peers are timed on, as parts of the library's own kinds.

A workload is a recipe under ``conf/experiment/`` for FedFacet, and a ``Workload`` of the same numbers for everybody else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfacet import rng
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.source import DatasetSource
from fedfacet.partitioners.synthetic import IIDPartitioner

NUM_ATTRIBUTES = 2


class RandomImages(DatasetSource):
    """Noise of 3 x S x S uint8 pixels; each class has brighter stripes of its own, so that there is a little to learn.

    Args:
        num_train: samples for the clients, 1 or larger.
        num_val: validation samples, 1 or larger.
        num_test: test samples, 1 or larger.
        num_classes: Y, 1 or larger.
        image_size: S, 1 or larger.
        seed: of the noise; it does not follow the run's seed.
    """

    def __init__(
        self, *, num_train: int, num_val: int, num_test: int, num_classes: int, image_size: int, seed: int = 0
    ) -> None:
        self.sizes = (num_train, num_val, num_test)
        self.num_classes = num_classes
        self.image_size = image_size
        self.seed = seed

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Draw the images; see ``DatasetSource.load``."""
        draw = rng.stream(self.seed, "random-images")
        y = draw.integers(self.num_classes, size=sum(self.sizes))
        images = draw.integers(224, size=(len(y), 3, self.image_size, self.image_size), dtype=np.uint8)
        for label in range(self.num_classes):
            images[y == label, :, label % self.image_size :: self.num_classes] += 31
        return _dataset(torch.from_numpy(images), y, self.sizes, self.num_classes, draw, images=True)


class RandomFeatures(DatasetSource):
    """Normal noise of D float32 numbers around a mean per class.

    Args:
        num_train: samples for the clients, 1 or larger.
        num_val: validation samples, 1 or larger.
        num_test: test samples, 1 or larger.
        num_classes: Y, 1 or larger.
        num_features: D, 1 or larger.
        seed: of the noise; it does not follow the run's seed.
    """

    def __init__(
        self, *, num_train: int, num_val: int, num_test: int, num_classes: int, num_features: int, seed: int = 0
    ) -> None:
        self.sizes = (num_train, num_val, num_test)
        self.num_classes = num_classes
        self.num_features = num_features
        self.seed = seed

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Draw the features; see ``DatasetSource.load``."""
        draw = rng.stream(self.seed, "random-features")
        y = draw.integers(self.num_classes, size=sum(self.sizes))
        means = 0.3 * draw.standard_normal((self.num_classes, self.num_features), dtype=np.float32)
        x = means[y] + draw.standard_normal((len(y), self.num_features), dtype=np.float32)
        return _dataset(torch.from_numpy(x), y, self.sizes, self.num_classes, draw, images=False)


def _dataset(
    x: Tensor, y: NDArray[np.int64], sizes: tuple[int, ...], num_classes: int, draw: np.random.Generator, *, images: bool
) -> Dataset:
    train, val, test = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return Dataset(
        inputs=InMemoryInputs(x),
        y=y,
        a=draw.integers(NUM_ATTRIBUTES, size=len(y)),
        train=train,
        test=test,
        val=val,
        class_names=tuple(f"class {label}" for label in range(num_classes)),
        attribute_names=tuple(f"attribute {value}" for value in range(NUM_ATTRIBUTES)),
        mean=(0.5,) * 3 if images else None,
        std=(0.25,) * 3 if images else None,
    )


class SmallConvNet(nn.Module):
    """W1's network: 5x5 convolutions 3-6 and 6-16 with 2x2 max-pooling, then 120, 84 and Y units.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), H and W at least 16.
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = input_shape
        pooled = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
        self.backbone = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * math.prod(pooled), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees, shape (B, 84)."""
        return self.backbone(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.features(x))


class LogisticRegression(nn.Module):
    """W3's model: a head and nothing else.

    Args:
        num_classes: Y.
        input_shape: (D,).
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(input_shape), num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees, shape (B, D)."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.features(x))


def _mobilenet(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    from fedfacet.models.mobilenet_v2_gn import MobileNetV2GN  # imports torchvision, which the others need not have

    return MobileNetV2GN(num_classes)


def _scaler_cnn(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    from fedfacet.models.scaler_cnn import ScalerCNN

    return ScalerCNN(num_classes, input_shape)


@dataclass(frozen=True)
class Tensors:
    """A workload's data as a plain training loop likes it.

    Attributes:
        x: all inputs, images normalised, shape (N, ...), float32.
        y: classes, shape (N,), int64.
        clients: per client the positions of its samples.
        held_out: positions of the samples that each round is evaluated on.
    """

    x: Tensor
    y: Tensor
    clients: list[Tensor]
    held_out: Tensor


@dataclass(frozen=True)
class Workload:
    """What every contender does in a round: train ``cohort_size`` clients for one local epoch, average, evaluate.

    Attributes:
        what: the workload in a few words.
        source: of the data.
        model: maps (num_classes, input_shape) to a network.
        num_clients: the size of the population; all clients hold equally many samples.
        cohort_size: clients in a round, drawn uniformly.
        batch_size: of local training.
        evaluation_batch_size: for contenders that do not choose for themselves.
        lr: of plain SGD.
        num_whole: the first so many clients train the whole network, the others the first half of its channels; ``None`` for a
            network that everybody trains whole.
    """

    what: str
    source: DatasetSource
    model: Callable[[int, tuple[int, ...]], nn.Module]
    num_clients: int
    cohort_size: int
    batch_size: int
    evaluation_batch_size: int
    lr: float = field(default=0.01, kw_only=True)
    num_whole: int | None = field(default=None, kw_only=True)

    def make_model(self) -> nn.Module:
        """Return the network with random weights, the same ones every time."""
        torch.manual_seed(0)
        return self.model(self.source.num_classes, self.input_shape)  # type: ignore[attr-defined]

    def make_half(self) -> nn.Module:
        """Return the network with half of its channels."""
        whole = self.make_model()
        plan = whole.channel_plan  # type: ignore[union-attr]
        return whole.narrowed({group: size // 2 for group, size in plan.sizes.items()})  # type: ignore[operator]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        if isinstance(self.source, RandomImages):
            return (3, self.source.image_size, self.source.image_size)
        assert isinstance(self.source, RandomFeatures)
        return (self.source.num_features,)

    def load(self, device: torch.device | str = "cpu") -> Tensors:
        """Return the data in memory, dealt to the clients as the ``iid`` partition deals it."""
        dataset = self.source.load()
        assert dataset.val is not None
        everything = dataset.batch(np.arange(len(dataset.y)))
        dealt = IIDPartitioner(num_clients=self.num_clients).partition(dataset.y[dataset.train], dataset.a[dataset.train])
        return Tensors(
            x=everything.x.to(device),
            y=everything.y.to(device),
            clients=[torch.from_numpy(dataset.train[client]).to(device) for client in dealt.indices],
            held_out=torch.from_numpy(np.concatenate([dataset.val, dataset.test])).to(device),
        )


def _images(num_train: int, held_out: int, num_classes: int, image_size: int) -> RandomImages:
    return RandomImages(
        num_train=num_train, num_val=held_out, num_test=held_out, num_classes=num_classes, image_size=image_size
    )


WORKLOADS = {
    "W1": Workload(
        "small CNN, 3x32x32, 24 clients x 200, 9 a round", _images(4800, 500, 10, 32), SmallConvNet, 24, 9, 28, 1000
    ),
    "W2": Workload(
        "MobileNetV2-GN, 3x64x64, 24 clients x 200, 9 a round", _images(4800, 500, 2, 64), _mobilenet, 24, 9, 28, 250
    ),
    "W3": Workload(
        "logistic regression, 60 features, 2,000 clients x 20, 200 a round",
        RandomFeatures(num_train=40_000, num_val=500, num_test=500, num_classes=10, num_features=60),
        LogisticRegression,
        2000,
        200,
        20,
        1000,
    ),
    "W4": Workload(
        "MobileNetV2-GN, 3x224x224, 24 clients x 200, 9 a round", _images(4800, 50, 2, 224), _mobilenet, 24, 9, 28, 50
    ),
    "W5": Workload(
        "HeteroFL's CNN, 3x32x32, 10 clients x 500, 2 whole and 8 half",
        _images(5000, 500, 10, 32),
        _scaler_cnn,
        10,
        10,
        128,
        128,
        num_whole=2,
    ),
    "smoke": Workload("W1's network, 4 clients x 20, 2 a round", _images(80, 20, 10, 32), SmallConvNet, 4, 2, 8, 40),
}
"""By name; ``smoke`` shows that a contender works and says nothing about its speed."""

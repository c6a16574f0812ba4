"""What several models are made of."""

from torch import Tensor, nn
from torch.nn import functional

from fedfacet.errors import ConfigError

NORM_STATISTICS = "norm_statistics"
"""What layers of static batch norm need, and ``mechanisms=static_norm`` gathers."""


class StaticBatchNorm2d(nn.BatchNorm2d):
    r"""Batch normalisation by the batch in training, and by gathered statistics in evaluation (sBN).

    Training does not change ``running_mean`` and ``running_var``, shape (C,), and clients do not send them. The mechanism
    ``StaticNorm`` writes them into the global model.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264, section 3, and the authors' code.
    """

    requires = frozenset({NORM_STATISTICS})

    def forward(self, x: Tensor) -> Tensor:
        """Return x of shape (B, C, H, W), normalised per channel."""
        if self.training:
            return functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def static_norms(module: nn.Module) -> dict[str, StaticBatchNorm2d]:
    """Return a module's layers of static batch norm by name, in its order."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, StaticBatchNorm2d)}


class Network(nn.Module):
    """A ``backbone``, whose output the linear ``head`` sees."""

    backbone: nn.Module
    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees, shape (B, F); of an image its features' mean over the pixels."""
        features: Tensor = self.backbone(x)
        return features.mean(dim=(2, 3)) if features.dim() == 4 else features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


def without_head(network: nn.Module, name: str) -> tuple[nn.Linear, str]:
    """Take the last linear layer out of a network, which then returns what that layer saw.

    Args:
        network: whose last layer it is; changed in place.
        name: what it is called, for the message.

    Returns:
        The layer, and its name in the network.

    Raises:
        ConfigError: if the network's last layer is no linear one.

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        >>> without_head(network, "mine")
        (Linear(in_features=5, out_features=2, bias=True), '2')
        >>> network
        Sequential(
          (0): Linear(in_features=3, out_features=5, bias=True)
          (1): ReLU()
          (2): Identity()
        )
    """
    last, layer = list(network.named_modules())[-1]
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"Expected the last layer of {name} to be linear, because many methods ask for what it sees, but it is "
            f"{type(layer).__name__}: choose another network."
        )
    network.set_submodule(last, nn.Identity())
    return layer, last


def keep_statistics(network: nn.Module) -> None:
    """Set all layers of batch normalisation to evaluation, so that a training step neither uses nor changes a batch's own."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()

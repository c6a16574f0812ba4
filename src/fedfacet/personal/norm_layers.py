"""FedBN: clients keep their normalisation layers."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedfacet.errors import ConfigError
from fedfacet.personal.base import PersonalLayers

NORM_LAYERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class PersonalNormLayers(PersonalLayers):
    """Keep every normalisation layer: scale, shift and running statistics.

    They are recognised by the type of their module: batch, instance, group, layer and RMS normalisation, and subclasses.

    Source: FedBN (Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
    arXiv:2102.07623), there for batch normalisation.

    Deviation: FedLD's released code, which has FedBN as a rival, goes by names that contain ``bn`` and misses the batch
    normalisation of ResNet's short cuts (``downsample.1``).
    """

    def names(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the normalisation layers' tensors."""
        layers = [prefix for prefix, module in model.named_modules(remove_duplicate=False) if isinstance(module, NORM_LAYERS)]
        owned = {prefix: model.get_submodule(prefix).state_dict() for prefix in layers}
        names = frozenset(f"{prefix}.{name}" if prefix else name for prefix, tensors in owned.items() for name in tensors)
        if not names:
            raise ConfigError(
                f"Expected a model with normalisation layers for personal=norm_layers, but {type(model).__name__} has none: "
                "choose another model, for example model=resnet8, or personal=none."
            )
        return names

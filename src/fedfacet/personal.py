"""What of a model stays with its client."""

from abc import ABC, abstractmethod

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedfacet.errors import ConfigError


class PersonalLayers(ABC):
    """Says which tensors of a model never leave a client.

    A client keeps them in its memory: it starts from its own, in place of those that were broadcast, and its update lacks
    them. So no aggregator ever averages them, and the global model keeps those it began with, which are what a client has
    before its first round. (A client needs to be sent them once, which is when the ledger counts them.)
    """

    @abstractmethod
    def names(self, model: nn.Module) -> frozenset[str]:
        """Return the personal tensors' names in the model's ``state_dict``: parameters and buffers.

        Raises:
            ConfigError: if the model has no such layers.
        """


class PersonalHead(PersonalLayers):
    """Keep the linear head; what is federated are the layers below it.

    Source: FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818), with one personal
    layer. Body and head are trained together.
    """

    def names(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the head's tensors."""
        for prefix in ("head", "model.head"):  # of a model, and of an objective that learns more than its model
            outer, _, name = prefix.rpartition(".")
            head = getattr(getattr(model, outer, None) if outer else model, name, None)
            if isinstance(head, nn.Module):
                return frozenset(f"{prefix}.{tensor}" for tensor in head.state_dict())
        raise ConfigError(
            f"Expected a model whose classifier is called `head` for personal=head, but {type(model).__name__} has none: name "
            "it so, or choose personal=none."
        )


class PersonalModel(PersonalLayers):
    """Nothing is federated: every client goes on with a model of its own, and sends nothing back.

    All start from the same initial weights. This is what ``setting=local`` is made of.
    """

    def names(self, model: nn.Module) -> frozenset[str]:
        """Return all names of the model's ``state_dict``."""
        return frozenset(model.state_dict())


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

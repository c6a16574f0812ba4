"""A classifier of texts of transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedfacet.arguments import check_choice, check_whole
from fedfacet.errors import ConfigError, first_line
from fedfacet.models.base import Network
from fedfacet.models.causal_lm import check_fits, quiet, random_weights, read_folder
from fedfacet.optional import required

_TASK = "SEQUENCE_CLASSIFICATION"
_TINY = {"architecture": "bert", "hidden_size": 64, "num_layers": 2, "num_heads": 4}


class TextClassifier(Network):
    r"""An encoder of transformers that reads a row of tokens in both directions, and a linear head.

    Negative entries pad a row at its end. The attention mask follows from them, so that the padding's length changes nothing. A
    row without any token is read as one token, that of the padding.

    Needs the package ``transformers`` (``pip install fedfacet[text]``). Nothing is fetched, no code of a folder is run, and
    weights are read from safetensors files, never from a pickle.

    Source: Devlin et al., BERT, NAACL 2019, arXiv:1810.04805. Each architecture has its own in the documentation of
    ``transformers``.

    Args:
        num_classes: Y.
        input_shape: (T,), the tokens of a row, 1 or more.
        vocabulary: how many tokens there are, 1 or larger. A folder may have more.
        path: a folder in Hugging Face's format with ``config.json`` and safetensors; ``None`` for random weights. Where the
            folder has no head for Y classes, the head starts from random weights.
        architecture: one of those that ``transformers`` has for classifying sequences; ``None`` for ``bert``, or for what the
            folder has.
        hidden_size: of a token, 1 or larger and a multiple of ``num_heads``; ``None`` for 64, or the folder's.
        num_layers: 1 or larger; ``None`` for 2, or the folder's.
        num_heads: of attention, 1 or larger; ``None`` for 4, or the folder's.
        attention: how ``transformers`` computes attention: ``"sdpa"``, or ``"eager"`` for architectures without it.
        arguments: further settings of the architecture, for example ``+model.arguments.hidden_dropout_prob=0``.

    Raises:
        ConfigError: if ``transformers`` is not installed, knows no such architecture or refuses its settings, if the folder
            cannot be read or has fewer tokens than needed, or if logits depend on padding.
        ValueError: if inputs are not rows of tokens, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913  # the keywords are options of model=text_classifier
        self,
        num_classes: int,
        input_shape: Sequence[int],
        *,
        vocabulary: int | None,
        path: str | None = None,
        architecture: str | None = None,
        hidden_size: int | None = None,
        num_layers: int | None = None,
        num_heads: int | None = None,
        attention: str = "sdpa",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise ValueError(
                f"`model=text_classifier` reads rows of tokens, but inputs have the shape {tuple(input_shape)}: choose another "
                "`model`, or a `dataset` of texts such as hf with `dataset.tokenizer`."
            )
        if vocabulary is None:
            raise ConfigError("`model=text_classifier` needs the number of tokens: give `model.vocabulary`.")
        check_whole("model.vocabulary", vocabulary)
        sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads}
        wanted: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
        for name, value in wanted.items():
            check_whole(f"model.{name}", value)
        wanted |= {} if architecture is None else {"architecture": architecture}
        check_choice("model.attention", attention, ("sdpa", "eager"))
        transformers = required("transformers", extra="text", wanted_by="model=text_classifier")
        with quiet(transformers):
            if path is None:
                settings = {"num_labels": num_classes} | dict(arguments or {})
                whole = random_weights(transformers, _TASK, vocabulary, input_shape[0], attention, _TINY | wanted, settings)
            elif wanted or arguments:
                raise ConfigError(
                    f"`model.{next(iter(wanted), 'arguments')}` is set, but the folder {path!r} says what the model is: leave "
                    "one of them out."
                )
            else:
                whole = read_folder(transformers, _TASK, path, attention, num_labels=num_classes)
        check_fits(whole.config, input_shape[0], vocabulary, None)
        self.padding = getattr(whole.config, "pad_token_id", None) or 0
        linear = [name for name, module in whole.named_modules() if isinstance(module, nn.Linear)]
        self.head = whole.get_submodule(linear[-1])
        whole.set_submodule(linear[-1], nn.Identity())
        self.backbone = whole
        self._check_padding(vocabulary, input_shape[0], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees, shape (B, F), of tokens, integers of shape (B, T)."""
        if x.is_floating_point():
            raise ValueError(
                f"`model=text_classifier` reads tokens, which are integers, but got {x.dtype}: choose another `model`."
            )
        first = torch.arange(x.shape[1], device=x.device) == 0  # a row without a token attends to something
        tokens = x.long().masked_fill(x < 0, self.padding)
        features: Tensor = self.backbone(input_ids=tokens, attention_mask=((x >= 0) | first).long()).logits
        return features.to(self.head.weight.dtype)  # of a frozen base in bfloat16

    def _check_padding(self, vocabulary: int, length: int, num_classes: int) -> None:
        """Refuse a model whose last linear layer is not its head, or whose logits change with padding.

        Raises:
            ConfigError: naming its class.
        """
        if self.head.weight.is_meta:
            return
        x = torch.full((2, min(length, 4)), -1)
        x[0], x[1, 0] = vocabulary - 1, vocabulary - 1
        training = self.training
        said = ""
        try:
            with torch.no_grad():
                padded, alone = self.eval()(x)[1:], self(x[1:, :1])
            fits = padded.shape == (1, num_classes) and torch.allclose(padded, alone, rtol=1e-4, atol=1e-4)
        except Exception as error:  # each architecture has its own
            fits, said = False, f" ({first_line(error)})"
        self.train(training)
        if not fits:
            raise ConfigError(
                f"The logits of {type(self.backbone).__name__} depend on padding, or come from no linear head{said}: choose "
                "another `model.architecture` or `model.path`, or `model=causal_lm`."
            )

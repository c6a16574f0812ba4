"""A causal language model of transformers."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfacet.arguments import check_choice, check_whole
from fedfacet.errors import ConfigError, first_line
from fedfacet.models.base import Network
from fedfacet.optional import required

_TINY = {"architecture": "llama", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "tie_embeddings": False}
_ITS_OWN_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "tie_embeddings": "tie_word_embeddings",
}
_TASK = "CAUSAL_LM"
KINDS = {
    _TASK: ("causal language model", "llama, gpt2, opt or qwen3"),
    "SEQUENCE_CLASSIFICATION": ("classifier of texts", "bert, electra, albert or modernbert"),
}
"""The tasks of transformers that models here are made for: in words, and some architectures for each."""
_WIDTHS = ("intermediate_size", "ffn_dim")  # of the layers between attention, for which each architecture has a large default


class CausalLM(Network):
    r"""A transformer that reads tokens from left to right, and a linear head on what it says at the last token of a row.

    .. math:: z = W_\text{head} \, h_{\ell(x)}, \qquad \ell(x) = \max \{t : x_t \geq 0\}

    h has the last hidden states. Negative entries pad a row at its end; causal attention never looks at them.

    Without ``vocabulary`` the classes are the tokens, the head is the language model's own, and the task is to predict the next
    token, as in ``dataset=shakespeare``. With ``vocabulary`` the classes are labels of texts, and a new linear layer replaces
    the head of the language model.

    Needs the package ``transformers`` (``pip install fedfacet[text]``). Nothing is fetched, no code of a folder is run, and
    weights are read from safetensors files, never from a pickle.

    Source: Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762; each architecture has its own in the
    documentation of ``transformers``.

    Note: a language model is usually trained by the mean loss over all positions of a row. Here the loss is that of the last
    one, so that every loss, metric and group count of the library applies. ``objective=next_token`` trains on all positions.

    Args:
        num_classes: Y.
        input_shape: (T,), the tokens of a row, 1 or more.
        path: a folder in Hugging Face's format with ``config.json`` and safetensors; ``None`` for random weights.
        architecture: one of those that ``transformers`` has for causal language models, such as ``gpt2``; ``None`` for
            ``llama``, or for what the folder has.
        hidden_size: what ``features`` returns, 1 or larger and a multiple of ``num_heads``; ``None`` for 64, or the folder's.
        num_layers: 1 or larger; ``None`` for 2, or the folder's.
        num_heads: of attention, 1 or larger; ``None`` for 4, or the folder's.
        tie_embeddings: whether the head of the language model is its embedding; ``None`` for false, or what the folder says.
        vocabulary: how many tokens there are, where classes are not tokens; 1 or larger. A folder may have more.
        attention: how ``transformers`` computes attention: ``"sdpa"``, or ``"eager"`` for architectures without it and for
            ``engine=vectorized``, which cannot stack the other.
        checkpoint_activations: whether the activations of a block are computed again in the backward pass instead of kept, with
            the same dropout. A step then takes about a third longer.
        arguments: further settings of the architecture, for example ``+model.arguments.attention_dropout=0.1``.

    Raises:
        ConfigError: if ``transformers`` is not installed, knows no such architecture or refuses its settings, if the folder
            cannot be read or has fewer tokens than needed, or if the head is not linear.
        ValueError: if inputs are not rows of tokens, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913  # the keywords are options of model=causal_lm
        self,
        num_classes: int,
        input_shape: Sequence[int],
        *,
        path: str | None = None,
        architecture: str | None = None,
        hidden_size: int | None = None,
        num_layers: int | None = None,
        num_heads: int | None = None,
        tie_embeddings: bool | None = None,
        vocabulary: int | None = None,
        attention: str = "sdpa",
        checkpoint_activations: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise ValueError(
                f"`model=causal_lm` reads rows of tokens, but inputs have the shape {tuple(input_shape)}: choose another "
                "`model`, or a `dataset` of tokens such as shakespeare."
            )
        given = {
            "architecture": architecture,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "tie_embeddings": tie_embeddings,
        }
        for name in ("hidden_size", "num_layers", "num_heads"):
            if given[name] is not None:
                check_whole(f"model.{name}", given[name])
        if vocabulary is not None:
            check_whole("model.vocabulary", vocabulary)
        check_choice("model.attention", attention, ("sdpa", "eager"))
        transformers = required("transformers", extra="text", wanted_by="model=causal_lm")
        tokens = num_classes if vocabulary is None else vocabulary
        wanted = {name: value for name, value in given.items() if value is not None}
        with quiet(transformers):
            if path is None:
                whole = random_weights(
                    transformers, _TASK, tokens, input_shape[0], attention, _TINY | wanted, dict(arguments or {})
                )
            elif wanted or arguments:
                raise ConfigError(
                    f"`model.{next(iter(wanted), 'arguments')}` is set, but the folder {path!r} says what the model is: leave "
                    "one of them out."
                )
            else:
                whole = read_folder(transformers, _TASK, path, attention)
        head = whole.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ConfigError(
                f"The head of {type(whole).__name__} is a {type(head).__name__}, not a linear layer: choose another "
                "`model.architecture`."
            )
        check_fits(whole.config, input_shape[0], tokens, num_classes if vocabulary is None else None)
        _check_head(whole, head)
        if checkpoint_activations and not whole.supports_gradient_checkpointing:
            raise ConfigError(
                f"{type(whole).__name__} cannot compute its activations again: set `model.checkpoint_activations=false`."
            )
        if checkpoint_activations:
            whole.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
            whole.disable_input_require_grads()  # a hook for the reentrant kind, which cannot be sent to other processes
        self.predicts_tokens = vocabulary is None
        self.backbone = whole.base_model
        self.head = head if vocabulary is None else nn.Linear(head.in_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees at the last token, shape (B, hidden_size), of tokens, integers of shape (B, T)."""
        last = (x >= 0).sum(dim=1).sub(1).clamp(min=0)
        states = self.states(x)[torch.arange(len(x), device=x.device), last]
        return states.to(self.head.weight.dtype)  # of a frozen base in bfloat16

    def states(self, x: Tensor) -> Tensor:
        """Return the last hidden states at all tokens, shape (B, T, hidden_size)."""
        if x.is_floating_point():
            raise ValueError(f"`model=causal_lm` reads tokens, which are integers, but got {x.dtype}: choose another `model`.")
        states: Tensor = self.backbone(input_ids=x.long().clamp(min=0), use_cache=False).last_hidden_state
        return states


def random_weights(
    transformers: Any, task: str, tokens: int, length: int, attention: str, sizes: Mapping[str, Any], arguments: dict[str, Any]
) -> Any:
    """Return a model of transformers for a task, a key of ``KINDS``, with random weights."""
    settings = {_ITS_OWN_NAMES.get(name, name): value for name, value in sizes.items()}
    architecture = settings.pop("architecture")
    words, examples = KINDS[task]
    if architecture not in getattr(transformers.models.auto.modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"):
        raise ConfigError(
            f"`model.architecture` is {architecture!r}, for which transformers has no {words}: choose one such as {examples}."
        )
    kind = transformers.AutoConfig.for_model(architecture)
    settings |= {name: 4 * settings["hidden_size"] for name in _WIDTHS if hasattr(kind, name)}
    of_tokens: dict[str, Any] = {"vocab_size": tokens, "max_position_embeddings": length}
    of_tokens |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # theirs lie beyond a small vocabulary
    try:
        config = transformers.AutoConfig.for_model(architecture, **settings | of_tokens | arguments)
        return _class(transformers, task).from_config(config, attn_implementation=attention)
    except Exception as error:  # each architecture has its own
        raise ConfigError(
            f"transformers refuses the settings of `model.architecture={architecture}` ({first_line(error)}): change "
            "`model.hidden_size`, `model.num_heads`, `model.attention` or `model.arguments`."
        ) from None


def read_folder(transformers: Any, task: str, path: str, attention: str, **settings: Any) -> Any:
    """Return the model of a folder for a task, in float32; on torch's device ``meta`` without reading its weights.

    What ``settings`` says is another than the folder's, such as ``num_labels``. Where a
    folder of an encoder lacks a classifier's own layers, or has them for other classes, those start from random weights.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():  # a name of the Hub would be looked up there
        raise ConfigError(
            f"`model.path` is {path!r}, a folder without `config.json`: name a folder that `save_pretrained` wrote."
        )
    safely = {"local_files_only": True, "trust_remote_code": False}
    try:
        if torch.get_default_device().type == "meta":
            config = transformers.AutoConfig.from_pretrained(folder, **safely, **settings)
            return _class(transformers, task).from_config(
                config, attn_implementation=attention, dtype=torch.float32, trust_remote_code=False
            )
        whole, report = _class(transformers, task).from_pretrained(
            folder,
            **safely,
            **settings,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            attn_implementation=attention,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library's, those of parsers, and those of each architecture
        raise ConfigError(
            f"`model.path` is {path!r}, which transformers cannot read without running its code or a pickle "
            f"({first_line(error)}): name a folder with `config.json` and safetensors that `save_pretrained` wrote."
        ) from None
    lacking = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    if task != _TASK:
        encoder = f"{whole.base_model_prefix}."
        lacking = [name for name in lacking if name.startswith(encoder) and ".pooler." not in name]
    if lacking:
        raise ConfigError(
            f"The weights in {path!r} lack {min(lacking)!r} or have it in another shape: name a folder with a whole "
            f"{KINDS[task][0]}."
        )
    return whole


def _class(transformers: Any, task: str) -> Any:
    """Return the class of transformers that makes models for a task."""
    return getattr(transformers, {_TASK: "AutoModelForCausalLM"}.get(task, "AutoModelForSequenceClassification"))


def check_fits(config: Any, length: int, tokens: int, classes: int | None) -> None:
    """Refuse a model that has fewer positions or tokens than there are, or tokens that are no classes.

    Raises:
        ConfigError: naming both numbers.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise ConfigError(
            f"A row has {length} tokens, but the model reads at most {positions}: choose a smaller `dataset.max_length` or "
            "another `model.path`."
        )
    if config.vocab_size < tokens:
        raise ConfigError(
            f"The data have {tokens} tokens, but the model knows {config.vocab_size}: choose the tokenizer of this model, or "
            "another `model.path`."
        )
    if classes is not None and config.vocab_size != classes:
        raise ConfigError(
            f"The data have {classes} classes, but the model has a logit for each of {config.vocab_size} tokens: if the "
            "classes are not tokens, give `model.vocabulary`; otherwise choose another `model.path`."
        )


def _check_head(whole: Any, head: nn.Linear) -> None:
    """Refuse a language model that does more than its head with the last hidden states, such as capping logits.

    Raises:
        ConfigError: naming its class.
    """
    if head.weight.is_meta:
        return
    training = whole.training
    with torch.no_grad():
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        expected = whole.eval()(input_ids=tokens, use_cache=False).logits
        ours = head(whole.base_model(input_ids=tokens, use_cache=False).last_hidden_state)
    whole.train(training)
    if not torch.allclose(expected, ours, rtol=1e-4, atol=1e-4):
        raise ConfigError(
            f"{type(whole).__name__} changes what its linear head says, which no head here does: choose another "
            "`model.architecture`."
        )


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep the advice and progress bars of ``transformers`` off the terminal; errors are said by this file."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

"""Texts as rows of tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, first_line
from fedfacet.optional import required

PADDING = -1
"""What fills a row after the last token; no tokenizer has it, so that no model takes it for a token."""


def tokens_of(texts: Sequence[str], tokenizer: Path, *, max_length: int, vocabulary: int | None, source: str) -> Tensor:
    """Return the tokens of texts, shape (N, max_length), int64; each row ends with ``PADDING``, -1, where a text is shorter.

    A longer text is cut at its end. Special tokens are added as the tokenizer says; its own padding and truncation are not
    used.

    Args:
        texts: N of them.
        tokenizer: a ``tokenizer.json`` as the package ``tokenizers`` writes it, or a folder with one.
        max_length: T, 1 or larger.
        vocabulary: how many tokens a model is made for; the tokenizer may have fewer.
        source: of the texts, for messages.

    Raises:
        ConfigError: if ``tokenizers`` is not installed, or ``vocabulary`` is missing or too small.
        DatasetNotFoundError: if there is no such file.
        DatasetCorruptError: if the file cannot be read, or a text has no tokens.
    """
    tokenizers = required("tokenizers", extra="text", wanted_by="dataset.tokenizer")
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not file.is_file():
        raise DatasetNotFoundError(
            f"There is no tokenizer at {file}: give `dataset.tokenizer=NAME`, a tokenizer.json inside `dataset.root` or a "
            "folder with one."
        )
    try:
        reader = tokenizers.Tokenizer.from_file(str(file))
        reader.no_padding()
        reader.enable_truncation(max_length)
    except Exception as error:  # the library raises no other class
        raise DatasetCorruptError(
            f"The tokenizer {file} cannot be read with `dataset.max_length={max_length}` ({first_line(error)}): write it again "
            "with the package tokenizers, or choose a larger `dataset.max_length`."
        ) from None
    size = 1 + max(reader.get_vocab(with_added_tokens=True).values(), default=0)  # numbers may have gaps
    if vocabulary is None or vocabulary < size:
        raise ConfigError(
            f"`dataset.vocabulary` is {vocabulary}, but the tokenizer {file.name} has {size} tokens: give "
            f"`dataset.vocabulary={size}`."
        )
    rows = torch.full((len(texts), max_length), PADDING)
    for number, read in enumerate(reader.encode_batch_fast(list(texts))):
        if not read.ids:
            raise DatasetCorruptError(f"Sample {number} of {source} has no tokens: leave samples without a text out.")
        rows[number, : len(read.ids)] = torch.tensor(read.ids)
    return rows


def write_texts(tokenizer: Path, groups: NDArray[np.int64], draw: np.random.Generator) -> list[str]:
    """Write a tokenizer of whole words, and return a text for each sample, in which a word of its group is frequent."""
    tokenizers = required("tokenizers", extra="text", wanted_by="dataset.tokenizer")
    words = [f"word{number}" for number in range(1 + int(groups.max(initial=0)))]
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?")
    written = tokenizers.Tokenizer(model)
    written.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.parent.mkdir(parents=True, exist_ok=True)
    written.save(str(tokenizer))
    return [" ".join([words[group], *draw.choice(words, size=draw.integers(1, 8))]) for group in groups]

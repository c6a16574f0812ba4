"""Texts of Hugging Face's format as rows of tokens."""

import json
import sys

import numpy as np
import pytest
import torch

import fedfacet
from fedfacet.data.hf import HuggingFace
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")

TEXTS = ["a fine film", "a dull film", "fine acting in a dull film", "dull"] * 4
LABELLED = {"text": TEXTS, "label": [1, 0, 1, 0] * 4, "who": ["ann", "bob", "bob", "ann"] * 4}


@pytest.fixture
def words(tmp_path):
    """Write texts and a tokenizer of whole words, which has 8 tokens and pads by itself; return how to read both."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers, of the extra `text`, is not installed")
    known = ["?", "a", "fine", "dull", "film", "acting", "in", "<s>"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 7)])
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    datasets.Dataset.from_dict(LABELLED).save_to_disk(str(tmp_path / "dataset"))
    settings = {"root": tmp_path, "input": "text", "attribute": "who", "tokenizer": "tokenizer.json", "vocabulary": 8}
    return lambda **changed: HuggingFace(**settings | {"max_length": 5} | changed)


def test_texts_are_rows_of_tokens_cut_and_padded(words):
    data = words().load()
    expected = [[7, 1, 2, 4, -1], [7, 1, 3, 4, -1], [7, 2, 5, 6, 1], [7, 3, -1, -1, -1]]
    assert data.inputs.fetch(np.arange(4)).tolist() == expected
    assert data.inputs.fetch(np.arange(4)).dtype == torch.int64
    assert (data.input_shape, data.class_names, data.attribute_names) == ((5,), ("0", "1"), ("ann", "bob"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocabulary": None}, r"`dataset\.vocabulary` is None.*has 8 tokens: give `dataset\.vocabulary=8`"),
        ({"vocabulary": 7}, r"`dataset\.vocabulary` is 7.*has 8 tokens"),
        ({"input": "label"}, "'label' of .* not texts: choose another `dataset.input`"),
        ({"tokenizer": "elsewhere.json"}, r"There is no tokenizer at \S+elsewhere\.json"),
        ({"tokenizer": "dataset/state.json"}, "cannot be read"),
    ],
)
def test_faults_are_said(words, changed, said):
    with pytest.raises((ConfigError, DatasetNotFoundError, DatasetCorruptError), match=said):
        words(**changed).load()


def test_a_text_without_tokens_is_said(words, tmp_path):
    datasets.Dataset.from_dict(LABELLED | {"text": ["a", ""] * 8}).save_to_disk(str(tmp_path / "empty"))
    datasets.Dataset.from_dict(LABELLED | {"text": ["a", None] * 8}).save_to_disk(str(tmp_path / "none"))
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    with pytest.raises(DatasetCorruptError, match=r"Sample 1 of .* has no tokens"):
        words(folder="empty").load()
    with pytest.raises(DatasetCorruptError, match=r"input in every row of the column 'text' .* row 2 has none"):
        words(folder="none").load()


def test_without_tokenizers_the_extra_is_named(words, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"tokenizers for dataset\.tokenizer.*fedfacet\[text\]"):
        words().load()


@pytest.mark.parametrize("model", ["causal_lm", "text_classifier"])
def test_clients_learn_to_classify_texts_and_every_group_is_counted(words, tmp_path, model):
    pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")
    run = fedfacet.train(
        *("dataset=hf", f"dataset.root={tmp_path}", "dataset.input=text", "dataset.attribute=who", f"model={model}"),
        *("dataset.tokenizer=tokenizer.json", "dataset.vocabulary=8", "dataset.max_length=5", "partition=iid"),
        *("partition.num_clients=2", "federation.cohort_size=2", "selector=uniform", "optimizer=adam", "optimizer.lr=0.01"),
        *(
            "aggregator=fedavg",
            "local.unit=steps",
            "local.amount=10",
            "model.hidden_size=16",
            "federation.rounds=5",
            "threads=1",
            "~callbacks.figures",
        ),
        f"paths.output_dir={tmp_path / 'run'}",
    )
    assert run.summary["final"]["test/acc_worst_group"] == 1
    assert run.model.backbone.config.vocab_size == 8

"""A classifier of texts against transformers itself, from random weights and from a folder."""

import sys

import pytest
import torch

from fedfacet.errors import ConfigError
from fedfacet.models.text_classifier import TextClassifier

transformers = pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")

SMALL = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def made(length=9, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextClassifier(3, (length,), **{"vocabulary": 11, "hidden_size": 16, "num_heads": 2} | settings).eval()


def padded(length=9):
    """Return rows of 6, 2 and 1 tokens, the last of which is token 0 of the vocabulary."""
    x = torch.full((3, length), -1)
    x[0, :6] = torch.tensor([3, 1, 10, 0, 1, 2])
    x[1, :2] = torch.tensor([1, 5])
    x[2, 0] = 0
    return x


def folder(path, kind="Bert", **settings):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        config = getattr(transformers, f"{kind}Config")(**SMALL | {"max_position_embeddings": 12, "num_labels": 3} | settings)
        whole = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    whole.save_pretrained(path)
    return whole


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Electra"])
def test_a_folder_says_what_transformers_says_of_ids_and_mask(kind, tmp_path):
    """RoBERTa numbers its positions by the token that pads, so that token must be the folder's own."""
    whole = folder(tmp_path, kind, pad_token_id=4)
    ours, x = TextClassifier(3, (6,), vocabulary=11, path=str(tmp_path)).eval(), padded(6)
    mask = (x >= 0).long()
    with torch.no_grad():
        expected = whole(input_ids=torch.where(mask == 1, x, 4), attention_mask=mask).logits
        torch.testing.assert_close(ours(x), expected)
        torch.testing.assert_close(ours.head(ours.features(x)), expected)


@pytest.mark.parametrize("architecture", ["bert", "electra", "albert", "modernbert"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_changes_nothing_and_a_row_without_tokens_is_finite(architecture, attention):
    model, x = made(architecture=architecture, attention=attention), padded()
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (3, 3)
        assert not torch.allclose(logits[0], logits[1])
        torch.testing.assert_close(model(x[:, :6]), logits)
        torch.testing.assert_close(model(x[1:2, :2]), logits[1:2])
        assert model(torch.full((2, 9), -1)).isfinite().all()


def test_a_pretrained_encoder_gets_a_new_head_and_keeps_its_weights(tmp_path):
    whole = folder(tmp_path)
    ours = TextClassifier(5, (9,), vocabulary=11, path=str(tmp_path))
    assert ours(padded()).shape == (3, 5)
    kept = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(ours.backbone.get_parameter(kept), whole.get_parameter(kept))


def test_what_does_not_fit_is_said(tmp_path):
    folder(tmp_path)
    with pytest.raises(ConfigError, match="A row has 13 tokens, but the model reads at most 12"):
        TextClassifier(3, (13,), vocabulary=11, path=str(tmp_path))
    with pytest.raises(ConfigError, match="The data have 80 tokens, but the model knows 11"):
        TextClassifier(3, (9,), vocabulary=80, path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"`model\.hidden_size` is set, but the folder"):
        TextClassifier(3, (9,), vocabulary=11, path=str(tmp_path), hidden_size=16)
    with pytest.raises(ConfigError, match=r"a folder without `config\.json`"):
        TextClassifier(3, (9,), vocabulary=11, path="bert-base-uncased")
    with pytest.raises(ConfigError, match=r"give `model\.vocabulary`"):
        made(vocabulary=None)
    with pytest.raises(ConfigError, match="no classifier of texts: choose one such as bert"):
        made(architecture="resnet")
    with pytest.raises(ConfigError, match=r"refuses the settings of `model\.architecture=bert`"):
        made(hidden_size=15)
    with pytest.raises(ConfigError, match=r"depend on padding.*`model=causal_lm`"):
        made(architecture="gpt2")
    with pytest.raises(ValueError, match=r"reads rows of tokens, but inputs have the shape \(3, 8, 8\)"):
        TextClassifier(2, (3, 8, 8), vocabulary=11)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"transformers for model=text_classifier.*fedfacet\[text\]"):
        made()

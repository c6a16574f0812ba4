"""A causal language model against transformers itself, from random weights and from a folder."""

import json
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet.clients.trainer import ClientTrainer
from fedfacet.errors import ConfigError
from fedfacet.models.causal_lm import CausalLM
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch

transformers = pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")


def made(num_classes=11, length=9, seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CausalLM(num_classes, (length,), **{"hidden_size": 16, "num_heads": 2} | settings)


def rows(number=5, length=9, tokens=11):
    return torch.randint(tokens, (number, length), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def folder(tmp_path):
    """Write a tiny language model in Hugging Face's format, and return it and its folder."""

    def write(**settings):
        config = transformers.GPT2Config(
            **{"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12, "bos_token_id": None}
            | {"eos_token_id": None}
            | settings
        )
        with torch.random.fork_rng():
            torch.manual_seed(5)
            whole = transformers.GPT2LMHeadModel(config).eval()
        whole.save_pretrained(tmp_path / "model")
        return whole, str(tmp_path / "model")

    return write


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_says_what_transformers_says_of_the_last_token(folder, tied):
    whole, path = folder(tie_word_embeddings=tied)
    ours = CausalLM(11, (9,), path=path).eval()
    x = rows()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), whole(input_ids=x).logits[:, -1])
    assert (ours.head.weight is ours.backbone.wte.weight) is tied


def test_padding_changes_nothing():
    model = made(3, vocabulary=11).eval()
    short, padded = rows(length=6), torch.full((5, 9), -1)
    padded[:, :6] = short
    with torch.no_grad():
        torch.testing.assert_close(model(padded), model(short))
        assert model(padded).shape == (5, 3)


def test_a_tied_head_stays_the_embedding_through_a_client():
    """One name travels, and after weights are loaded both are one tensor, trained through either use."""
    model = made(architecture="gpt2", tie_embeddings=True)
    program = ClientTrainer(ClassificationObjective(model))
    assert {"head.weight", "backbone.wte.weight"} & program.tensors.keys() == {"backbone.wte.weight"}
    weights = {name: tensor.detach() + 0.5 for name, tensor in program.tensors.items()}
    program.load(weights)
    assert model.head.weight is model.backbone.wte.weight
    torch.testing.assert_close(model.head.weight.detach(), weights["backbone.wte.weight"])


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_checkpointed_activations_give_the_same_gradients_with_dropout_and_twice_the_forward_passes(architecture):
    dropout = {"attention_dropout": 0.3} if architecture == "llama" else {"attn_pdrop": 0.3, "resid_pdrop": 0.2}
    batch, gradients, calls = Batch(rows(), torch.arange(5), torch.zeros(5, dtype=torch.int64)), [], []
    for checkpointed in (False, True):
        model = made(architecture=architecture, arguments=dropout, checkpoint_activations=checkpointed).double()
        block = next(part for part in model.backbone.modules() if isinstance(part, nn.ModuleList))[0]
        seen = []
        next(block.children()).register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
        with torch.random.fork_rng():
            torch.manual_seed(7)
            ClassificationObjective(model).training_step(batch, 0).backward()
        calls.append(len(seen))
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert calls == [1, 2]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-14)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        again = made(architecture=architecture, arguments=dropout).double()
        functional.cross_entropy(again(batch.x), batch.y).backward()
    assert not torch.allclose(again.head.weight.grad, gradients[0]["head.weight"]), "dropout is on"


@pytest.mark.parametrize("settings", [{}, {"checkpoint_activations": True}])
def test_it_can_be_sent_to_other_processes(settings):
    model = pickle.loads(pickle.dumps(made(**settings)))
    model(rows()).sum().backward()


def test_what_does_not_fit_is_said(folder, tmp_path):
    _, path = folder()
    with pytest.raises(ConfigError, match="A row has 13 tokens, but the model reads at most 12"):
        CausalLM(11, (13,), path=path)
    with pytest.raises(ConfigError, match="The data have 80 tokens, but the model knows 11"):
        CausalLM(80, (9,), path=path)
    with pytest.raises(ConfigError, match=r"The data have 2 classes.*each of 11 tokens.*`model\.vocabulary`"):
        CausalLM(2, (9,), path=path)
    with pytest.raises(ConfigError, match=r"`model\.hidden_size` is set, but the folder"):
        CausalLM(11, (9,), path=path, hidden_size=16)
    with pytest.raises(ConfigError, match=r"a folder without `config\.json`"):
        CausalLM(11, (9,), path="gpt2")
    with pytest.raises(ConfigError, match="no causal language model: choose one such as llama"):
        made(architecture="resnet")
    with pytest.raises(ConfigError, match=r"transformers refuses the settings of `model\.architecture=llama`"):
        made(hidden_size=15)
    with pytest.raises(ConfigError, match="changes what its linear head says"):
        made(architecture="cohere", arguments={"logit_scale": 0.5})
    with pytest.raises(ValueError, match=r"reads rows of tokens, but inputs have the shape \(3, 8, 8\)"):
        CausalLM(2, (3, 8, 8))


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"transformers for model=causal_lm.*fedfacet\[text\]"):
        made()


def test_a_folder_of_pickles_or_with_code_of_its_own_is_refused(folder, tmp_path):
    whole, path = folder()
    file = tmp_path / "model" / "model.safetensors"
    torch.save(whole.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    kept = file.read_bytes()
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read without running its code or a pickle"):
        CausalLM(11, (9,), path=path)
    file.write_bytes(kept)
    settings = tmp_path / "model" / "config.json"
    own = {"auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.MineLM"}, "model_type": "mine"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | own))
    (tmp_path / "model" / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigError, match="cannot read without running its code"):
        CausalLM(11, (9,), path=path)

import pytest
import torch
from torch.nn import functional

from fedfacet.losses import margin
from fedfacet.models.causal_lm import CausalLM
from fedfacet.models.mlp import MLP
from fedfacet.objectives.next_token import NextTokenObjective
from fedfacet.types import Batch

transformers = pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")


def network(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CausalLM(11, (9,), hidden_size=16, num_heads=2, architecture="gpt2", **settings)


def batch():
    x = torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(3))
    return Batch(x, torch.arange(5), torch.zeros(5, dtype=torch.int64))


def test_the_loss_and_its_gradients_are_those_of_transformers():
    """Which shifts the labels itself: a row's tokens with the class behind them."""
    objective = NextTokenObjective(network().eval())
    whole = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**objective.model.backbone.config.to_dict() | {"n_positions": 10})
    ).eval()
    states = {f"transformer.{name}": tensor for name, tensor in objective.model.backbone.state_dict().items()}
    states["transformer.wpe.weight"] = torch.cat([states["transformer.wpe.weight"], torch.zeros(1, 16)])
    whole.load_state_dict({**states, "lm_head.weight": objective.model.head.weight})
    x, y, _ = batch()
    tokens = torch.cat([x, y[:, None]], dim=1)
    theirs = whole(input_ids=tokens, labels=tokens).loss
    ours = objective.training_step(batch(), 0)
    torch.testing.assert_close(ours, theirs)
    ours.backward(), theirs.backward()
    gradients = dict(whole.named_parameters())
    for name, parameter in objective.model.backbone.named_parameters():
        if not name.startswith("wpe"):
            torch.testing.assert_close(parameter.grad, gradients[f"transformer.{name}"].grad)


def test_padding_has_no_part_in_the_loss():
    objective = NextTokenObjective(network().eval())
    x, y, a = batch()
    padded = torch.full((5, 9), -1)
    padded[:, :6] = x[:, :6]
    torch.testing.assert_close(
        objective.training_step(Batch(padded, y, a), 0), objective.training_step(Batch(x[:, :6], y, a), 0)
    )


def test_the_model_is_measured_as_a_classifier():
    objective, one = NextTokenObjective(network().eval()), batch()
    logits = objective.predict_step(one, 0)
    assert logits.shape == (5, 11)
    last = functional.cross_entropy(objective.model.head(objective.model.states(one.x)[:, -1]), one.y)
    torch.testing.assert_close(functional.cross_entropy(logits, one.y), last)


def test_what_is_not_a_language_model_is_refused():
    for model in (MLP(2, (5,), hidden=(7,)), network(vocabulary=30)):
        with pytest.raises(ValueError, match="trains language models whose classes are tokens"):
            NextTokenObjective(model)
    with pytest.raises(ValueError, match="cross_entropy"):
        NextTokenObjective(network(), loss=margin)

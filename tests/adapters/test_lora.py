"""LoRA against its formula, and against what PEFT itself makes of the files; without peft all of it is skipped."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedfacet
from fedfacet.adapters import LoRA
from fedfacet.clients.local_training import LocalTraining
from fedfacet.errors import ConfigError
from fedfacet.models.causal_lm import CausalLM
from fedfacet.models.checks import check_trained
from fedfacet.models.mlp import MLP
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.models.torchvision import Torchvision

peft = pytest.importorskip("peft", reason="peft, of the extra `lora`, is not installed")


def network(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP(2, (5,), **settings)


def adapted(model, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LoRA(**settings).fit(model)
    return model


@pytest.fixture
def federation():
    def make(model, **settings):
        draw = np.random.default_rng(3)
        y = np.arange(90) % 2
        dataset = fedfacet.dataset_from_arrays(draw.normal(size=(90, 5)) + y[:, None], y)
        data = fedfacet.deal(dataset, fedfacet.IIDPartitioner(num_clients=3))
        local = LocalTraining(unit="steps", amount=3, batch_size=6)
        return fedfacet.federate(data, model, local=local, **settings)

    return make


def merged(model, weights, scale):
    """Return the layers' weights W + scale B A by hand."""
    own = model.state_dict() | weights
    return {
        name.replace(".base_layer", ""): tensor
        + (
            scale * own[name.replace("base_layer", "lora_B.default")] @ own[name.replace("base_layer", "lora_A.default")]
            if name.endswith("base_layer.weight")
            else 0
        )
        for name, tensor in own.items()
        if "lora_" not in name
    }


def test_a_trained_model_is_the_base_and_alpha_over_r_times_b_a(federation):
    model, plain = adapted(network(hidden=(7,)), r=2, alpha=6.0), network(hidden=(7,))
    layer = next(name for name, part in plain.named_modules() if isinstance(part, nn.Linear) and name != "head")
    run = federation(model)
    assert sorted(run.state.model) == sorted(
        [f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight", "head.weight", "head.bias"]
    )
    before = plain.state_dict()[f"{layer}.weight"].clone()
    for _ in range(2):
        result = run.run_round()
    assert result.ledger.floats_up == result.ledger.floats_down == 3 * (2 * 5 + 7 * 2 + 7 * 2 + 2)
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    model.load_state_dict(model.state_dict() | run.state.model)
    plain.load_state_dict(merged(model, run.state.model, 6.0 / 2))
    assert (plain.state_dict()[f"{layer}.weight"] - before).abs().max() > 1e-4, "B has moved"
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))


def test_a_full_rank_with_a_fixed_to_the_identity_is_full_training(federation):
    """Then the gradient of B is that of W, and alpha / r is 1: nothing of the layer is frozen in effect."""
    model, plain = adapted(network(hidden=(7,)), r=5, alpha=5.0, freeze_a=True), network(hidden=(7,))
    layer = next(name for name, part in plain.named_modules() if isinstance(part, nn.Linear) and name != "head")
    with torch.no_grad():
        model.get_submodule(layer).lora_A["default"].weight.copy_(torch.eye(5))
    plain.get_submodule(layer).bias.requires_grad_(False)
    ours, theirs = federation(model), federation(plain)
    start = plain.state_dict()[f"{layer}.weight"].clone()
    for _ in range(3):
        ours.run_round(), theirs.run_round()
    added = ours.state.model[f"{layer}.lora_B.default.weight"]
    assert added.abs().max() > 1e-3
    torch.testing.assert_close(added, theirs.state.model[f"{layer}.weight"] - start, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.state.model["head.weight"], theirs.state.model["head.weight"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("freeze_a", [False, True])
def test_averaging_a_and_b_is_averaging_their_product_only_where_a_stays(freeze_a, federation):
    model = adapted(network(hidden=(7,)), r=2, alpha=2.0, freeze_a=freeze_a)
    run = federation(model, optimizer=partial(torch.optim.SGD, lr=0.5))
    run.run_round()  # in the first round B is 0
    a, b = (next(name for name in model.state_dict() if part in name) for part in ("lora_A", "lora_B"))
    before = run.state.model
    updates = [run.engine.clients.train(run.order(run.state, client_id)) for client_id in range(3)]
    fixed = model.state_dict()[a]
    moved = [(before[b] + one.delta[b]) @ (before[a] + one.delta[a] if a in before else fixed) for one in updates]
    mean = torch.stack(moved).mean(dim=0)
    means = [torch.stack([before[name] + one.delta[name] for one in updates]).mean(dim=0) for name in (a, b) if name in before]
    ours = means[-1] @ (means[0] if a in before else fixed)
    assert torch.allclose(ours, mean, rtol=0, atol=1e-5) is freeze_a


def test_peft_reads_what_a_run_exports(tmp_path):
    """Convolutions, a linear layer and the head; a run as from the command line."""
    run = fedfacet.train(
        *("adapter=lora", "adapter.r=2", "adapter.dropout=0.1", "selector=uniform", "federation.rounds=2", "threads=1"),
        *("model.width=4", "~callbacks.figures", f"paths.output_dir={tmp_path / 'run'}"),
    )
    ours = run.model.eval()
    with fedfacet.rng.forked(0, "weights"):
        base = SmallCNN(2, (3, 8, 8), width=4)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / "run" / "model" / "adapter")).eval()
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs(x))
    assert not torch.allclose(ours(x), base.eval()(x), atol=1e-3), "something was trained"
    torch.testing.assert_close(theirs.merge_and_unload()(x), ours(x))


def test_a_fixed_a_is_exported_too(federation, tmp_path):
    model, adapter = network(hidden=(7,)), LoRA(r=2, freeze_a=True)
    adapter.fit(model)
    run = federation(model)
    run.run_round()
    assert not any("lora_A" in name for name in run.state.model)
    adapter.export(model, run.state.model, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(network(hidden=(7,)), str(tmp_path / "adapter")).eval()
    model.load_state_dict(model.state_dict() | run.state.model)
    x = torch.randn(6, 5)
    torch.testing.assert_close(theirs(x), model.eval()(x))


def test_names_that_match_nothing_are_said_before_the_run():
    with pytest.raises(ConfigError, match=r"none matches \['query'\]: name some of backbone\.\d+"):
        LoRA(target_modules=["query"]).fit(SmallCNN(2, (3, 8, 8)))
    with pytest.raises(ConfigError, match="none matches 'head'"):  # it is trained whole
        LoRA(target_modules="head").fit(SmallCNN(2, (3, 8, 8)))
    with pytest.raises(ConfigError, match="it has none: choose adapter=frozen"):
        LoRA().fit(network(hidden=()))
    with pytest.raises(ConfigError, match="none called 'classifier'"):
        LoRA(modules_to_save=["classifier"]).fit(network(hidden=(7,)))


def test_layers_are_named_by_their_ends_or_by_an_expression():
    def changed(targets):
        model = adapted(SmallCNN(2, (3, 8, 8)), target_modules=targets)
        return {name.partition(".lora_")[0] for name in model.state_dict() if ".lora_" in name}

    every = changed(None)
    assert len(every) > 2
    one = min(every)
    assert changed([one.rpartition(".")[2]]) == {one} == changed(one.replace(".", r"\."))


def test_a_transformer_of_torchvision_is_changed_where_it_uses_its_layers():
    arguments = {"image_size": 32, "patch_size": 16, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
    x = torch.zeros(1, 3, 32, 32)

    def transformer():
        from torchvision.models.vision_transformer import VisionTransformer

        return VisionTransformer(num_classes=4, **arguments)

    model = transformer()
    LoRA(modules_to_save=["heads"]).fit(model)
    check_trained(model, x, "adapter=lora")
    assert not any("self_attention" in name for name in model.state_dict() if ".lora_" in name)
    model = transformer()
    LoRA(modules_to_save=["heads"], target_modules=["out_proj"]).fit(model)  # which attention reads and does not call
    with pytest.raises(ConfigError, match=r"'encoder\S+out_proj\S+' has no part in what it says"):
        check_trained(model, x, "adapter=lora")


def test_a_network_of_the_catalogue_keeps_its_head_trained():
    model = Torchvision(3, (3, 32, 32), name="mobilenet_v3_small")
    LoRA(r=2).fit(model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {"head.weight", "head.bias"} < set(trained)
    assert all(name.startswith("head.") or ".lora_" in name for name in trained)
    check_trained(model, torch.zeros(1, 3, 32, 32), "adapter=lora")
    loss = functional.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1]))
    loss.backward()
    assert model.head.weight.grad is not None


def language_model(**settings):
    pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CausalLM(11, (9,), hidden_size=16, num_heads=2, **settings)


def federation_of_tokens(model):
    draw = np.random.default_rng(3)
    dataset = fedfacet.dataset_from_arrays(draw.integers(11, size=(66, 9)), np.arange(66) % 11)
    data = fedfacet.deal(dataset, fedfacet.IIDPartitioner(num_clients=3))
    local = LocalTraining(unit="steps", amount=2, batch_size=6)
    return fedfacet.federate(data, model, local=local, optimizer=partial(torch.optim.SGD, lr=0.5))


@pytest.mark.parametrize("head", [["head"], []])
@pytest.mark.parametrize("settings", [{}, {"architecture": "gpt2", "tie_embeddings": True}])
def test_a_base_in_bfloat16_takes_half_the_bytes_and_what_is_trained_stays_in_float32(settings, head):
    """A tied head that is trained keeps the embedding in float32: it is the same tensor."""
    models, runs = [], []
    x = torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(1))
    for dtype in ("float32", "bfloat16"):
        models.append(adapted(language_model(**settings), modules_to_save=head, base_dtype=dtype))
        runs.append(federation_of_tokens(models[-1]))
    with torch.no_grad():
        exact, rounded = (model.eval()(x) for model in models)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.02)  # bfloat16 has 8 bits
    for run, model in zip(runs, models, strict=True):
        result = run.run_round()
        assert {tensor.dtype for tensor in run.state.model.values()} == {torch.float32}
        assert result.ledger.floats_up == 3 * sum(p.numel() for p in model.parameters() if p.requires_grad), "tied ones once"
    frozen = [sum(p.nbytes for p in model.parameters() if not p.requires_grad) for model in models]
    assert frozen[1] * 2 == frozen[0] > 0
    assert all(p.dtype == torch.float32 for p in models[1].parameters() if p.requires_grad)
    update = runs[1].engine.clients.train(runs[1].order(runs[1].state, 0))
    assert {tensor.dtype for tensor in update.delta.values()} == {torch.float32}
    moved = [torch.cat([tensor.flatten() for tensor in run.state.model.values()]) for run in runs]
    assert functional.cosine_similarity(*moved, dim=0) > 0.99


def test_layers_of_every_kind_compute_in_bfloat16():
    """Conv1D is changed by default; batch normalisation, whose statistics travel, stays in float32."""
    changed = {name for name in adapted(language_model(architecture="gpt2")).state_dict() if "lora_A" in name}
    assert len(changed) == 2 * 4
    model = adapted(Torchvision(3, (3, 32, 32), name="mobilenet_v3_small"), base_dtype="bfloat16")
    check_trained(model, torch.zeros(1, 3, 32, 32), "adapter=lora")
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert {tensor.dtype for part in norms for tensor in part.state_dict().values()} == {torch.float32, torch.int64}
    functional.cross_entropy(model.train()(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 0])).backward()
    assert model.head.weight.grad.dtype == torch.float32
    assert model.features(torch.randn(2, 3, 32, 32)).dtype == torch.float32, "for whoever puts a head of another kind on them"


@pytest.mark.parametrize(("key", "value"), [("r", 0), ("alpha", 0.0), ("dropout", 1.0), ("base_dtype", "int8")])
def test_what_is_out_of_range_is_refused(key, value):
    with pytest.raises(ValueError, match=f"Expected `adapter.{key}`"):
        LoRA(**{key: value})

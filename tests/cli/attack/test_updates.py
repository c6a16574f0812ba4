"""Forged updates, against every aggregator: each is refused or dropped, or makes a finite model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet import config, rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import BadUpdateError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.selectors.all import AllSelector
from fedfacet.types import ClientUpdate

pytestmark = pytest.mark.slow

AGGREGATORS = sorted(file.stem for file in (Path(__file__).parents[3] / "conf" / "aggregator").glob("*.yaml"))
ROUNDS = 40
NUMBERS = [0, -1, 1, 0.5, 2**53, 2**53 + 1, 10**400, float("nan"), float("inf"), -0.0, 1e308, 5e-324, True, None, "3", [1],
           np.int64(3), np.float32(2), torch.tensor(3), complex(1)]  # fmt: skip


DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
BUNDLES = [None, [], 3, "x", {"stranger": torch.ones(2)}, {3: torch.ones(1)}, {"": None}]
FIELDS = ["delta", "delta", "buffers", "extras", "memory", "client_id", "num_samples", "num_steps", "step_weight", "metrics"]


class Sending(SequentialEngine):
    """Hands over updates that nobody trained."""

    updates = ()

    def run(self, tasks):
        return iter(self.updates)


def forged_tensor(draw, tensor):
    """Something in the place of a tensor."""
    makers = [
        lambda: None,
        lambda: 3.0,
        lambda: tensor.tolist(),
        lambda: tensor.numpy(),
        lambda: tensor.to(
            draw.choice([torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
        ),
        lambda: tensor.to_sparse(),
        lambda: tensor.to("meta"),
        lambda: tensor.clone().requires_grad_(),
        lambda: torch.nn.Parameter(tensor.clone()),
        lambda: tensor.reshape(-1),
        lambda: tensor[None],
        lambda: tensor[..., :-1],
        lambda: tensor.new_zeros(0),
        lambda: tensor.new_tensor(1.0),
        lambda: tensor.new_tensor(1.0).expand(tensor.shape),
        lambda: tensor.flip(0).t().t() if tensor.dim() == 2 else tensor.flip(0),
        lambda: torch.full_like(tensor, draw.choice([float("nan"), float("inf"), -float("inf"), 3.4e38, -3.4e38, 1e-45, 1e19])),
        lambda: tensor.index_fill(0, torch.tensor([0]), float("nan")),
        lambda: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([tensor, tensor]),
        lambda: torch._neg_view(tensor),
        lambda: np.ma.masked_array(tensor.numpy()),
    ]
    return draw.choice(makers)()


def forged_bundle(draw, bundle):
    """A bundle with one fault, or something in its place."""
    names = list(bundle)
    if not names or draw.random() < 0.1:
        return draw.choice(
            [None, [], 3, "x", {"stranger": torch.ones(2)}, {3: torch.ones(1)}, {"": None}, list(bundle.values())]
        )
    name, kind = draw.choice(names), draw.choice(["tensor", "tensor", "tensor", "lacking", "renamed", "added", "order"])
    changed = dict(bundle)
    if kind == "tensor":
        changed[name] = forged_tensor(draw, bundle[name])
    elif kind == "order":
        changed = dict(reversed(changed.items()))
    else:
        if kind != "added":
            del changed[name]
        if kind != "lacking":
            changed[f"{name}."] = bundle[name]
    return changed


def forged(draw, update):
    """An update with one fault, or something in its place."""
    field = draw.choice([*FIELDS, "whole"])
    if field == "whole":
        return draw.choice([None, 3, {}, update.delta, "update", [update]])
    if field in ("delta", "buffers", "extras", "memory"):
        return replace(update, **{field: forged_bundle(draw, getattr(update, field))})
    if field == "metrics":
        broken = dict(update.metrics) | {draw.choice(["loss_sum", "num_seen", "more"]): draw.choice(NUMBERS)}
        return replace(update, metrics=draw.choice([None, [], {}, broken, broken, broken]))
    return replace(update, **{field: draw.choice(NUMBERS)})


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of prototypes among the forgeries
@pytest.mark.parametrize("policy", ["raise", "drop"])
@pytest.mark.parametrize("name", AGGREGATORS)
def test_forged_updates(name, policy, draw, attack, tiny_clients, tiny_federation):
    with rng.forked(0, "weights"):
        model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
    clients = tiny_clients(objective=ClassificationObjective(model), local=LocalTraining(batch_size=8))
    aggregator = config.make(config.compose_job("train", ["~experiment", f"aggregator={name}"])[0].aggregator)
    engine, like = Sending(device="cpu"), clients.facts
    federation = tiny_federation(
        aggregator=aggregator, clients=clients, engine=engine, selector=AllSelector(), cohort_size=4, on_bad_update=policy
    )
    generator = torch.Generator().manual_seed(draw.randrange(1000))

    def honest(client_id):
        parts = ({each: like.model[each] for each in names} for names in (like.parameters, like.buffers))
        bundles = [
            {each: torch.randn(tensor.shape, generator=generator) / 10 for each, tensor in part.items()}
            for part in (*parts, aggregator.extras(like))
        ]
        counts = {"num_samples": 5, "num_steps": 3, "step_weight": 3.0, "metrics": {"loss_sum": 1.0, "num_seen": 5}}
        return ClientUpdate(client_id, *bundles[:2], **counts, extras=bundles[2])

    for _ in range(ROUNDS):
        updates = [honest(client_id) for client_id in range(4)]
        for client_id in draw.sample(range(4), draw.choice([1, 1, 2, 4])):
            updates[client_id] = forged(draw, updates[client_id])
        engine.updates, before = updates, federation.state
        with attack(updates, (BadUpdateError,)) as came:
            try:
                arrived = federation.run_round().arrived
            except BadUpdateError:
                assert federation.state is before
                raise
            assert state.all_finite(federation.state.model)
            came("taken" if len(arrived) == 4 else "dropped")

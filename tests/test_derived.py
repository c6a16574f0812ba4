"""Tied tensors stay tied and singular vectors stay unit vectors, whatever makes the next model."""

from functools import partial

import pytest
import torch
from torch import nn

from fedfacet import (
    ClassificationObjective,
    IIDPartitioner,
    LocalTraining,
    dataset_from_arrays,
    deal,
    federate,
    state,
)
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.derived import SingularVectors
from fedfacet.methods.feddyn import FedDyn, FedDynCorrection
from fedfacet.methods.scaffold import Scaffold, ScaffoldCorrection
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.transforms import ClipAndNoise, RandomUpdate

SGD = partial(torch.optim.SGD, lr=0.5)


class Tied(nn.Module):
    """One matrix, and one normalisation layer, under two names each."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)
        self.b.weight = self.a.weight
        self.again = self.norm

    def forward(self, x):
        return self.c(self.again(self.b(self.norm(self.a(x)).tanh())).tanh())


class Unnormalised(Tied):
    """Without buffers, which private clients must not have."""

    def __init__(self):
        super().__init__()
        self.norm = self.again = nn.GroupNorm(1, 4)


def data(num_clients=3):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=draw)
    return deal(dataset_from_arrays(x.numpy(), (x[:, 0] > 0).long().numpy()), IIDPartitioner(num_clients=num_clients))


def after(net, rounds=2, **parts):
    torch.manual_seed(0)
    model = net()
    correction = parts.pop("correction", None)
    objective = ClassificationObjective(model, correction=correction, optimizer=SGD) if correction else model
    federation = federate(data(), objective, optimizer=SGD, local=LocalTraining(batch_size=10), rounds=rounds, **parts)
    federation.fit()
    return federation


@pytest.mark.parametrize(
    ("net", "parts"),
    [
        (Tied, {}),
        (Tied, {"transforms": [RandomUpdate(clients=[1])]}),
        (Tied, {"aggregator": Scaffold(), "correction": ScaffoldCorrection()}),
        (Tied, {"aggregator": FedDyn(), "correction": FedDynCorrection()}),
        (Tied, {"personal": {"a.weight", "b.weight"}}),
        (Unnormalised, {"transforms": [ClipAndNoise(clip_norm=1.0, noise_multiplier=0.5)]}),
        (Unnormalised, {"privacy": CentralDP(clip_norm=1.0, noise_multiplier=0.5)}),
        (Unnormalised, {"privacy": DPSGD(max_grad_norm=1.0, noise_multiplier=0.5)}),
    ],
)
def test_tied_tensors_are_sent_once_and_stay_tied(net, parts):
    federation = after(net, **parts)
    model = federation.state.model
    assert torch.equal(model["a.weight"], model["b.weight"])
    assert all(torch.equal(model[name], model[name.replace("norm", "again")]) for name in model if name.startswith("norm."))
    sent = {*federation.facts.parameters, *federation.facts.buffers}
    assert not any(name.startswith(("b.weight", "again.")) for name in sent)
    net().load_state_dict(model)


def test_a_tied_tensor_is_counted_once():
    result = federate(data(), Unnormalised(), rounds=1).run_round()
    distinct = sum(parameter.numel() for parameter in Unnormalised().parameters())
    assert result.ledger.floats_down == result.ledger.floats_up == 3 * distinct


def test_a_tied_tensor_cannot_stay_and_travel():
    with pytest.raises(ValueError, match=r"both or neither of 'b.weight' and 'a.weight'"):
        federate(data(), Tied(), personal={"b.weight"})


@pytest.mark.parametrize("normalised", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("aggregator", [FedAvg(), FedAvg(buffers="keep"), FedDyn()])
def test_the_largest_singular_value_is_1_after_any_round(normalised, aggregator):
    def net():
        return nn.Sequential(normalised(nn.Linear(4, 8)), nn.Linear(8, 2))

    correction = FedDynCorrection() if isinstance(aggregator, FedDyn) else None
    model = after(net, aggregator=aggregator, correction=correction).state.model
    vectors = [tensor for name, tensor in model.items() if name.endswith(("_u", "_v"))]
    assert [float(vector.norm()) for vector in vectors] == pytest.approx([1.0, 1.0], abs=1e-6)
    network = net()
    network.load_state_dict(model)
    network.eval()(torch.zeros(2, 4))
    assert float(torch.linalg.svdvals(network[0].weight.detach())[0]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 3), (3, 1)])
def test_singular_vectors_are_those_of_the_weight_and_always_the_same(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for dim in (0, 1):
        found = SingularVectors("w", "u", "v", dim).of(weight)
        matrix = weight.movedim(dim, 0)
        assert float(found["u"] @ matrix @ found["v"]) == pytest.approx(float(torch.linalg.svdvals(weight)[0]), rel=1e-6)
        assert state.digest(found) == state.digest(SingularVectors("w", "u", "v", dim).of(weight))

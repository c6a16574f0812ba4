"""Clients that hold parts of the model, in whole rounds: what they are sent and train, what is counted and refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.assembly import federate
from fedfacet.capacities import GivenCapacity, LargestCapacity
from fedfacet.client_setup import parts_of
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.prediction import Predictions
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.federated import deal
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.models.lenet import LeNet
from fedfacet.models.scaler_cnn import ScalerCNN
from fedfacet.partitioners.synthetic import IIDPartitioner
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.submodels.channel_sets import ChannelSets
from fedfacet.types import Broadcast, ClientTask

HETEROFL = partial(ChannelSets, grouping="one", dynamics="fixed", policy="blocks")
FED_DROPOUT = partial(ChannelSets, grouping="each", dynamics="every_round", policy="random")


@pytest.fixture(scope="module")
def data():
    """Five clients of 12 images of 3x32x32 in 10 classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (80, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.arange(80).numpy() % 10
    names = tuple(map(str, range(10)))
    dataset = Dataset(
        inputs=InMemoryInputs(images), y=y, a=y * 0, train=torch.arange(60).numpy(), test=torch.arange(60, 80).numpy(),
        val=None, class_names=names, attribute_names=("none",), mean=(0.5,) * 3, std=(0.25,) * 3,
    )  # fmt: skip
    return deal(dataset, IIDPartitioner(num_clients=5))


def federation(data, **settings):
    torch.manual_seed(0)
    settings = {"capacity": LargestCapacity(num_whole=2), "submodel": HETEROFL(), "callbacks": {}} | settings
    settings |= {"model": settings.get("model") or ScalerCNN(10, (3, 32, 32), width=16), "rounds": 2}
    return federate(data, **settings)


def test_a_client_is_sent_and_returns_its_part_and_nothing_else(data):
    """Two whole clients of 99,210 parameters, three halves of 25,418; the ledger counts those."""
    run = federation(data)
    result = run.run_round()
    assert result.ledger.floats_down == result.ledger.floats_up == 2 * 99_210 + 3 * 25_418
    assert [state.num_floats(run.sent(run.state, k).model) for k in range(5)] == [99_210] * 2 + [25_418] * 3


def test_queries_are_answered_on_the_clients_own_part(data):
    selector = PowDSelector(num_candidates=5, local_loss=LocalLoss(), num_samples=NumSamples())
    run = federation(data, selector=selector, cohort_size=1)
    ledger = run.run_round().ledger
    assert ledger.floats_down + ledger.query_floats_down == 2 * 99_210 + 3 * 25_418


def test_a_clients_training_is_that_of_a_small_model_with_these_weights(data):
    """The same update, bit for bit, as from a federation of half-wide models."""
    run = federation(data, submodel=FED_DROPOUT())
    small = ScalerCNN(10, (3, 32, 32), width=16).narrowed(run.find(Submodels).parts.sizes(0.5))
    broadcast = run.sent(run.state, 4)
    small.load_state_dict(broadcast.model)
    alone = federate(data, small, callbacks={}, rounds=1)
    task = ClientTask(4, 1, 0, broadcast)
    (ours,), (theirs,) = run.engine.run([task]), alone.engine.run([task])
    assert state.digest(ours.delta) == state.digest(theirs.delta)


def test_with_everybody_whole_it_is_a_run_without_parts(data):
    plain = federation(data, capacity=None, submodel=None).fit()
    for capacity in (GivenCapacity(rates=[1] * 5), LargestCapacity(num_whole=5), LargestCapacity(rate=1.0)):
        assert state.digest(federation(data, capacity=capacity).fit().model) == state.digest(plain.model)
    assert state.digest(federation(data).fit().model) != state.digest(plain.model)


def test_what_nobody_holds_stays_with_its_momentum(data):
    """All five clients hold the first half: the other half of the model does not move, round after round."""
    run = federation(data, capacity=LargestCapacity(num_whole=0), aggregator=FedAvgM(momentum=0.9, server_lr=1.0))
    before = run.state.model["backbone.5.weight"]
    after = run.fit().model["backbone.5.weight"]
    same = after == before
    assert same[16:].all()
    assert same[:, 8:].all()
    assert not same[:16, :8].any()
    assert (run.state.aggregator["velocity"]["backbone.5.weight"][16:] == 0).all()


def test_a_client_cannot_say_what_it_held(data):
    run = federation(data)
    train = run.engine.run
    run.engine.run = lambda tasks: (replace(update, mask=update.delta) for update in train(tasks))
    with pytest.raises(BadUpdateError, match="what the client held"):
        run.run_round()


def test_batches_that_a_model_sees_are_mixed(data):
    """Or batches of one class, as splits come in, would tell it nothing. Every other model gets them as they come."""
    split = np.arange(300)
    for norm, mixed in (("batch", True), ("group", False)):
        run = federation(data, model=ScalerCNN(10, (3, 32, 32), width=4, norm=norm))
        asked = []

        def answer(model, splits, memory, asked=asked):
            asked.append(splits)
            positions = np.concatenate(splits)
            return Predictions(positions, positions.astype(np.float32), np.stack([positions] * 10, axis=1).astype(np.float32))

        run.engine._predictions = answer
        said = run.engine.predict(run.state.model, [split, split[:5]])
        assert [one.labels.tolist() for one in said] == [split.tolist(), split[:5].tolist()]
        assert [one.logits[:, 3].tolist() for one in said] == [split.tolist(), split[:5].tolist()]
        if mixed:
            assert [list(map(len, batches)) for batches in asked] == [[100, 100, 100], [5]]
            assert all(abs(batch.mean() - 149.5) < 30 for batch in asked[0])
        else:
            assert [list(map(len, batches)) for batches in asked] == [[300, 5]]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"submodel": None}, "`capacity` and `submodel` together, but got capacity alone"),
        ({"capacity": None}, "`capacity` and `submodel` together, but got submodel alone"),
        ({"model": LeNet(10, (3, 32, 32))}, "LeNet has none"),
        ({"aggregator": "fedld"}, "aggregator=FedLD to go with capacity=LargestCapacity, but it needs whole models"),
        ({"selector": "fedpns"}, "selector=FedPNSSelector to go with capacity=.*, but it compares whole updates"),
        ({"personal": {"head.weight"}}, "personal=none"),
        ({"local": LocalTraining(keep_optimizer=True)}, "keep_optimizer"),
    ],
)
def test_refuses_what_cannot_do_with_parts(settings, part, data):
    from fedfacet.aggregators.fedld import FedLD
    from fedfacet.selectors.fedpns import FedPNSSelector

    made = {"fedld": FedLD, "fedpns": FedPNSSelector}
    settings = {name: made[value]() if isinstance(value, str) else value for name, value in settings.items()}
    with pytest.raises(ConfigError, match=part):
        federation(data, **settings)


def test_refuses_rates_for_other_clients(data):
    with pytest.raises(ValueError, match="one rate for each of 5 clients"):
        parts_of(GivenCapacity(rates=[1, 0.5]), HETEROFL(), ScalerCNN(10, (3, 32, 32)), data.partition, 0)


def test_a_plain_average_of_parts_by_count(data):
    """The aggregator sees what the clients sent: the next model is the mean over holders, entry by entry."""
    run = federation(data, submodel=FED_DROPOUT(), aggregator=FedAvg())
    before = run.state
    tasks = [run.order(before, k) for k in range(5)]
    updates = list(run.engine.run(tasks))
    run.run_round()
    name = "backbone.5.weight"
    sums, counts = torch.zeros(32, 16), torch.zeros(32, 16)
    for update in updates:
        channels = run.find(Submodels).parts.channels(update.client_id, 1)
        rows, columns = (torch.arange(32), torch.arange(16)) if channels is None else (
            torch.from_numpy(channels["conv2"]), torch.from_numpy(channels["conv1"])
        )  # fmt: skip
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                sums[row, column] += update.delta[name][i, j, 0, 0]
                counts[row, column] += 1
    moved = run.state.model[name][:, :, 0, 0] - before.model[name][:, :, 0, 0]
    torch.testing.assert_close(moved, sums / counts, rtol=1e-4, atol=1e-7)


class _Doubled(FedAvg):
    """Sends twice the model, and something else along."""

    def broadcast(self, server, model, client_id):
        return Broadcast(state.scaled(model, 2.0), {"extra": torch.ones(1)})


def test_what_an_aggregator_sends_is_cut_whatever_it_is(data):
    run = federation(data, aggregator=_Doubled())
    sent, model = run.sent(run.state, 4), run.state.model
    torch.testing.assert_close(sent.model["head.weight"], 2 * model["head.weight"][:, :64])
    assert sent.extras.keys() == {"extra"}

"""What all methods of a client's and a server's half keep to: exact engines, exact resume, and no half without the other."""

from functools import partial

import pytest
import torch

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedopt import FedOpt
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.methods.feddyn import FedDyn, FedDynCorrection
from fedfacet.methods.scaffold import Scaffold, ScaffoldCorrection
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.ditto import DittoObjective
from fedfacet.objectives.moon import MoonObjective
from fedfacet.participation import Stragglers
from fedfacet.schedulers import StepScheduler
from fedfacet.storage import checkpoint
from fedfacet.types import Broadcast, ClientTask

METHODS = {
    "scaffold": (ClassificationObjective, ScaffoldCorrection, Scaffold),
    "feddyn": (ClassificationObjective, FedDynCorrection, FedDyn),
    "ditto": (DittoObjective, None, FedAvg),
    "moon": (MoonObjective, None, FedAvg),
}
SERVERS = {kind: (ClassificationObjective, None, partial(FedOpt, second_moment=kind)) for kind in ("adam", "yogi", "adagrad")}


@pytest.fixture
def federation(tiny_federation):
    """Return a function that makes a federation of four clients, three in a round, some of which straggle."""

    def make(method, **settings):
        objective, correction, aggregator = (METHODS | SERVERS)[method]
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        return tiny_federation(
            objective=objective(
                model,
                correction=correction() if correction else None,
                optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.5),
            ),
            aggregator=aggregator(),
            participation=Stragglers(straggler_probability=0.5),
            scheduler=StepScheduler(every_n_rounds=2, decay=0.5),
            local=LocalTraining(unit="steps", amount=7, batch_size=8),
            cohort_size=3,
            rounds=4,
            **settings,
        )

    return make


def told(saved):
    """Return the digests of the model, of what every client keeps, and of what the server keeps."""
    tensors = {f"{name}/{key}": tensor for name, part in saved.aggregator.items() if isinstance(part, dict)
               for key, tensor in part.items()}  # fmt: skip
    memory = {client_id: state.digest(kept) for client_id, kept in sorted(saved.memory.items())}
    return state.digest(saved.model), memory, state.digest(tensors)


@pytest.mark.parametrize("method", METHODS | SERVERS)
def test_a_resumed_run_ends_where_the_whole_one_does(method, federation, tmp_path):
    first, path = federation(method), tmp_path / "checkpoints" / "last.ckpt"
    first.run_round()
    first.run_round()
    checkpoint.save(path, first.state, {"seed": 0})
    second = federation(method)
    second.restore(checkpoint.load(path)[0])
    assert told(second.fit()) == told(federation(method).fit())


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon"])
def test_a_client_may_be_put_down_between_two_steps(method, federation):
    """Ditto's may not, whose personal model changes with every step."""
    whole = federation(method)
    whole.run_round()
    (client_id, *_), clients = whole.state.memory, whole.engine.clients
    task = ClientTask(client_id, 2, 0, whole.sent(whole.state, client_id), whole.state.memory[client_id], 1.0, 0.5)
    assert clients.program.divisible
    half = clients.train_part(task, None, 3)
    clients.train(ClientTask(client_id, 1, 0, Broadcast(task.broadcast.model, task.broadcast.extras)))  # something else between
    taken_up, at_once = clients.train_part(task, half, None), clients.train(task)
    for part in ("delta", "extras", "memory"):
        assert state.digest(getattr(taken_up, part)) == state.digest(getattr(at_once, part))
    assert not federation("ditto").engine.clients.program.divisible


@pytest.fixture
def built(tmp_path):
    def make(*overrides):
        config, _ = compose_job("train", ["experiment=digits_gsc", "selector=uniform", "callbacks=[]", *overrides])
        config.logger = {}
        return build(config, tmp_path)

    return make


@pytest.mark.parametrize(
    ("half", "name"),
    [
        ("aggregator=scaffold", "scaffold/"),
        ("correction=scaffold", "scaffold/"),
        ("aggregator=feddyn", "feddyn/"),
        ("correction=feddyn", "feddyn/"),
    ],
)
def test_half_a_method_is_refused(half, name, built):
    with pytest.raises(
        ConfigError, match=rf"^Expected a part that \w+ '{name}\w+', which {half} \w+, but there is none: [^.]+\.$"
    ):
        built(half)


@pytest.mark.parametrize(
    ("override", "parts"),
    [(f"method={name}", parts) for name, parts in METHODS.items()]
    + [(f"aggregator=fed{kind}", SERVERS[kind]) for kind in SERVERS],
)
def test_the_option_is_the_method(override, parts, built):
    federation = built(override)
    objective, correction, aggregator = parts
    made = federation.engine.clients.objective
    assert type(made) is objective
    assert type(made.correction) is (correction or type(None))
    assert type(federation.aggregator) is type(aggregator())
    assert getattr(federation.aggregator, "second_moment", None) == getattr(aggregator(), "second_moment", None)

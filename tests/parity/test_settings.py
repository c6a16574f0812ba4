"""setting=centralized and setting=local against plain training of the same LightningModule."""

import copy
import itertools

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fedfacet import state
from fedfacet.clients.personal_memory import own_model
from fedfacet.selectors.all import AllSelector
from fedfacet.storage import checkpoint
from fedfacet.types import Batch, Broadcast, ClientTask

ROUNDS = 3
PLAIN = ("memory_format=contiguous_format", "threads=1", f"federation.rounds={ROUNDS}", "local.batch_size=20")

lightning_small_talk = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:GPU available but not used",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
)


def trained_by_a_trainer(federation, client_id):
    """Return the weights after a plain Trainer had a client's samples, in the order of the federation's rounds."""
    clients = federation.engine.clients
    data = clients.data(client_id)
    whole = data.batch(np.arange(len(data)))
    samples = [Batch(*sample) for sample in zip(*whole, strict=True)]
    order = []
    for round in range(1, ROUNDS + 1):
        task = ClientTask(client_id, round, federation.seed, Broadcast(federation.state.model))
        order += [positions.tolist() for positions in itertools.islice(clients.batches(task), clients.num_steps(task))]
    objective = copy.deepcopy(clients.objective)
    objective.model.load_state_dict(federation.state.model)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(objective, DataLoader(samples, batch_sampler=order))
    return objective.model.state_dict()


@lightning_small_talk
def test_centralized_is_plain_training_on_the_union(main_job):
    """But for what w + (w' - w) misses w' by; ``test_against_plain_torch`` says so in full."""
    federation, dealt = main_job("setting=centralized", *PLAIN), main_job("setting=federated", *PLAIN)
    (union,) = federation.engine.clients.partition.indices
    assert union.tolist() == sorted(np.concatenate(dealt.engine.clients.partition.indices).tolist())
    expected = trained_by_a_trainer(federation, 0)
    start = federation.state.model
    results = [federation.run_round() for _ in range(ROUNDS)]
    assert {result.cohort for result in results} == {(0,)}
    assert all(result.metrics["train/num_steps"] == 48 for result in results), "a round is one epoch over 960 samples"
    for name, tensor in expected.items():
        np.testing.assert_allclose(federation.state.model[name], tensor, rtol=0, atol=5e-5, err_msg=name)
        assert (tensor - start[name]).abs().max() > 2e-2, "and it did move"


def test_without_its_optimizer_it_would_be_another_training(main_job):
    kept, reset = main_job("setting=centralized", *PLAIN), main_job("setting=centralized", "local.keep_optimizer=false", *PLAIN)
    for federation in (kept, reset):
        federation.run_round()
    assert state.digest(kept.state.model) == state.digest(reset.state.model), "nothing is kept before the first round"
    for federation in (kept, reset):
        federation.run_round()
    gaps = [(kept.state.model[name] - reset.state.model[name]).abs().max() for name in kept.state.model]
    assert max(gaps) > 1e-3


@lightning_small_talk
@pytest.mark.parametrize("client_id", [0, 5, 23])
def test_local_is_plain_training_of_each_client_bit_for_bit(client_id, main_job):
    federation = main_job("setting=local", *PLAIN)
    expected = trained_by_a_trainer(federation, client_id)
    start = state.digest(federation.state.model)
    results = [federation.run_round() for _ in range(ROUNDS)]
    ours = own_model(federation.state.model, federation.state.memory[client_id])
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    assert state.digest(federation.state.model) == start, "nobody averages"
    assert [result.ledger.floats_up for result in results] == [0] * ROUNDS
    initial = 24 * state.num_floats(federation.state.model)
    assert [result.ledger.floats_down for result in results] == [initial, 0, 0], "the initial weights, once"


class Only(AllSelector):
    """Some clients, in this order."""

    def __init__(self, *clients):
        self.clients = clients

    def select(self, server, context):
        return list(self.clients)


def test_local_clients_know_nothing_of_each_other(main_job):
    """All of them, some of them in another order, or each for itself: a client's model is the same."""
    together = main_job("setting=local", *PLAIN)
    backwards, alone = main_job("setting=local", *PLAIN), main_job("setting=local", *PLAIN)
    backwards.selector, alone.selector = Only(23, 9, 2, 5), Only(2)
    backwards.cohort_size, alone.cohort_size = 4, 1
    for federation in (together, backwards, alone):
        for _ in range(2):
            federation.run_round()
    assert sorted(together.state.memory) == list(range(24))
    assert sorted(backwards.state.memory) == [2, 5, 9, 23]
    assert sorted(alone.state.memory) == [2]
    digests = {client_id: state.digest(memory) for client_id, memory in together.state.memory.items()}
    assert len(set(digests.values())) == 24, "and no two are alike"
    for federation in (backwards, alone):
        for client_id, memory in federation.state.memory.items():
            assert state.digest(memory) == digests[client_id]


@pytest.mark.parametrize(("setting", "optimizer"), [("centralized", "adam"), ("local", "sgd")])
def test_both_resume_exactly(setting, optimizer, main_job, tmp_path):
    chosen = ("optimizer._target_=torch.optim.Adam", "~optimizer.momentum", "optimizer.lr=0.01") if optimizer == "adam" else ()

    def make():
        return main_job(f"setting={setting}", *chosen, "callbacks.evaluate.every_n_rounds=2", *PLAIN)

    whole, first, second = make(), make(), make()
    told = [repr(whole.run_round().metrics) for _ in range(ROUNDS)]
    parts = [repr(first.run_round().metrics)]
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", first.state, {"seed": 0})
    second.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    parts += [repr(second.run_round().metrics) for _ in range(2)]
    assert parts == told
    assert state.digest(second.state.model) == state.digest(whole.state.model)
    for client_id, memory in whole.state.memory.items():
        assert any(key.startswith("optimizer|") for key in memory)
        assert state.digest(second.state.memory[client_id]) == state.digest(memory)


@pytest.mark.parametrize("setting", ["centralized", "local"])
def test_clients_divided_between_processes_are_the_same(setting, main_job):
    """What the workers engine does with a long client: put it down after some steps and take it up elsewhere."""
    federation = main_job(f"setting={setting}", *PLAIN)
    federation.run_round()
    tasks = []
    federation.engine.run = lambda given: (tasks.append(task) or clients.train(task) for task in given)
    clients = federation.engine.clients
    federation.run_round()
    for task in tasks[:2]:
        whole = clients.train(task)
        update = clients.train_part(task, clients.train_part(task, None, 1), None)
        assert state.digest(update.delta) == state.digest(whole.delta)
        assert state.digest(update.memory) == state.digest(whole.memory)

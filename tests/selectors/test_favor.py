import logging
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.decomposition import PCA

from fedfacet import rng, state
from fedfacet.build import build
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods import favor_dqn as dqn
from fedfacet.methods.favor import FavorSelector, coordinates, reward
from fedfacet.records import Ledger, RoundResult
from fedfacet.storage import checkpoint
from fedfacet.types import ClientUpdate, Facts, SelectionContext

SMALL = {"components": 4, "hidden": 16, "capacity": 8}
JOB = ("experiment=digits_gsc", "callbacks=[]", "logger=[]", "selector=favor", "aggregator=fedavg", "server_data=validation")
JOB = (*JOB, "selector.components=4", "selector.hidden=16")


class Run:
    """A selector among K clients whose models are points; a round's model is the mean of its updates."""

    def __init__(self, selector, num_clients, *, model=(0.0, 0.0, 0.0)):
        self.selector, self.num_clients = selector, num_clients
        self.state = selector.init(Facts(num_clients, {"w": torch.tensor(model)}, ("w",)))

    def select(self, round, places, available=None):
        available = tuple(range(self.num_clients) if available is None else available)
        draw = rng.stream(0, "selection", round)
        return self.selector.select(
            self.state, SelectionContext(round, self.num_clients, places, places, available, {}, draw, None)
        )

    def observe(self, round, deltas, accuracy=None):
        metrics = {"loss_sum": 1.0, "num_seen": 1}
        updates = [ClientUpdate(k, {"w": torch.tensor(delta)}, {}, 9, 1, 1.0, metrics) for k, delta in deltas.items()]
        change = state.weighted_mean((update.delta, 1.0) for update in updates) or {"w": torch.zeros(3)}
        handed = {} if accuracy is None else {"judge": lambda change: confusion(accuracy)}
        result = RoundResult(round, tuple(deltas), (), {}, Ledger(), {}, self.num_clients)
        draw = rng.stream(0, "selector-learns", round)
        self.state = self.selector.observe(self.state, result, updates, draw, change=change, **handed)


def confusion(accuracy):
    right = round(1000 * accuracy)
    return np.array([[[right, 1000 - right]], [[0, 0]]])


def drawn_deltas(number, seed=0):
    draw = rng.stream(seed, "unused").normal(size=(number, 3)) * [3.0, 1.0, 0.1]
    return {k: draw[k].astype(np.float32).tolist() for k in range(number)}


# The state


def test_coordinates_are_those_of_principal_component_analysis():
    """Up to the sign of a component; in units of the standard deviation along the first one."""
    run = Run(FavorSelector(components=2), 6)
    deltas = drawn_deltas(6)
    run.observe(1, deltas, 0.5)
    X = np.array(list(deltas.values()))
    expected = PCA(2).fit_transform(X)
    expected /= expected[:, 0].std()
    found = run.state["weights"].numpy()
    assert np.abs(found[1:]) == pytest.approx(np.abs(expected), abs=1e-4)
    assert found[0] == pytest.approx(0, abs=1e-5), "the mean of all clients' models"
    assert found[1:].mean(axis=0) == pytest.approx(0, abs=1e-5)


def test_updates_that_are_all_alike_have_no_components():
    run = Run(FavorSelector(components=3), 4)
    run.observe(1, {k: [1.0, 2.0, 3.0] for k in range(4)}, 0.5)
    assert run.state["fitted"]
    assert not run.state["weights"].any()


def test_it_waits_for_updates_that_can_be_compared():
    run = Run(FavorSelector(), 3)
    run.observe(1, {})
    run.observe(2, {1: [1.0, 0.0, 0.0]}, 0.5)
    assert not run.state["fitted"]
    run.observe(3, {0: [2.0, 0.0, 0.0], 2: [4.0, 0.0, 0.0]}, 0.5)
    assert run.state["mean"]["w"].tolist() == [4.0, 0.0, 0.0], "what the model was by then, and the updates' mean"
    assert run.state["weights"][:, 0].abs().tolist() == pytest.approx([0, 1, 3, 1])


def test_the_state_has_everybodys_last_model(tiny_federation):
    """In a federation in which clients take part now and then: the coordinates of models that this test keeps."""
    models = {}

    class Watched(FavorSelector):
        def observe(self, server, result, updates, rng, **handed):
            for update in updates:
                models[update.client_id] = state.add(run.facts.model if result.round == 1 else sent[0], update.delta)
            return super().observe(server, result, updates, rng, **handed)

    run = tiny_federation(selector=Watched(**SMALL), cohort_size=2, rounds=4)
    for _ in range(4):
        sent = [run.state.model]
        run.run_round()
        server = run.state.selector
        assert len(models) == 4
        everybody = [run.state.model, *(models[k] for k in range(4))]
        for row, model in zip(server["weights"], everybody, strict=True):
            expected = coordinates(server["components"], state.subtract({k: model[k] for k in server["mean"]}, server["mean"]))
            assert row.numpy() == pytest.approx(expected.numpy(), abs=1e-4)


# Selection


def test_the_first_round_is_everybodys():
    assert Run(FavorSelector(), 5).select(1, 2, available=(0, 2, 4)) == [0, 2, 4]


def test_a_network_of_zeros_chooses_uniformly():
    run = Run(FavorSelector(exploration=0.0, exploration_least=0.0), 5)
    cohorts = [frozenset(run.select(round, 2)) for round in range(2, 4002)]
    counts = [cohorts.count(cohort) for cohort in set(cohorts)]
    assert len(counts) == 10
    assert chisquare(counts).pvalue > 1e-4


def with_values(run, values):
    learner = run.state["learner"]
    last = {**learner["online"], "2.bias": torch.tensor(values)}
    run.state = run.state | {"learner": learner | {"online": last}}


def test_the_largest_values_are_taken():
    run = Run(FavorSelector(exploration=0.0, exploration_least=0.0), 6)
    with_values(run, [0.0, 5.0, -inf, 2.0, 3.0, 1.0])
    assert run.select(2, 3) == [1, 4, 3]
    assert run.select(2, 4, available=(0, 2, 3, 5)) == [3, 5, 0, 2]


def test_values_that_are_nan_rank_last_and_are_named(caplog):
    run = Run(FavorSelector(exploration=0.0, exploration_least=0.0), 4)
    with_values(run, [nan, -9.0, nan, -inf])
    assert run.select(2, 2) == [1, 3]
    assert "Round 2: the values of 2 of 4 clients are NaN, and rank last: clients 0, 2." in caplog.text


def test_places_are_drawn_at_random_as_often_as_it_explores():
    run = Run(FavorSelector(exploration=0.4, exploration_decay=0.5, exploration_least=0.1), 10)
    with_values(run, [9.0, *[0.0] * 9])  # one draw in ten is the best client's all the same
    for steps, probability in ((0, 0.4), (1, 0.2), (5, 0.1)):
        run.state = run.state | {"learner": run.state["learner"] | {"steps": steps}}
        missed = sum(run.select(round, 1) != [0] for round in range(2, 1202))
        assert missed == pytest.approx(0.9 * 1200 * probability, abs=57)


# Learning


@pytest.mark.parametrize(("accuracy", "discount"), [(0.5, 0.7), (0.8, 0.0), (0.95, 0.0)])
def test_a_round_is_a_step_on_what_it_was_worth(accuracy, discount):
    """At the target of .8 the episode is over, and what would come next counts for nothing."""
    run = Run(FavorSelector(**SMALL, target=0.8, discount=0.7, lr=0.01), 6)
    run.observe(1, drawn_deltas(6), 0.1)
    before = run.state
    assert before["seen"] == 0, "nobody was chosen in the first round"
    deltas = {k: delta for k, delta in drawn_deltas(6, seed=1).items() if k in (1, 4)}
    run.observe(2, deltas, accuracy)
    batch = dqn.Transitions(
        states=before["weights"].reshape(1, -1),
        actions=torch.tensor([[False, True, False, False, True, False]]),
        rewards=torch.tensor([64 ** (accuracy - 0.8) - 1]),
        next_states=run.state["weights"].reshape(1, -1),
        discounts=torch.tensor([discount]),
    )
    expected = dqn.learnt(before["learner"], batch, lr=0.01, copy_every=10)
    assert state.digest(run.state["learner"]["online"]) == state.digest(expected["online"])
    assert run.state["learner"]["steps"] == run.state["seen"] == 1


def test_the_oldest_round_is_forgotten():
    run = Run(FavorSelector(components=2, hidden=4, capacity=3), 4)
    for round in range(1, 7):
        run.observe(round, drawn_deltas(4), round / 10)
    assert run.state["seen"] == 5
    expected = [reward(accuracy, 0.9) for accuracy in (0.5, 0.6, 0.4)]
    assert run.state["rewards"].tolist() == pytest.approx(expected)


def test_it_finds_the_client_that_helps():
    """The model is good after rounds of client 3 alone; the agent explores, and in the end prefers that client."""
    run = Run(FavorSelector(components=2, hidden=16, lr=0.01, discount=0.5, exploration=1.0, exploration_decay=0.97), 5)
    deltas = drawn_deltas(5)
    run.observe(1, deltas, 0.1)
    for round in range(2, 152):
        (chosen,) = run.select(round, 1)
        run.observe(round, {chosen: [0.01 * entry for entry in deltas[chosen]]}, 0.85 if chosen == 3 else 0.3)
    chosen = [run.select(round, 1)[0] for round in range(200, 300)]
    assert chosen.count(3) > 85


def test_the_reward_is_of_the_new_model_on_the_servers_samples(tiny_federation):
    run = tiny_federation(selector=FavorSelector(**SMALL, target=0.75), cohort_size=2, rounds=3)
    for round in range(1, 4):
        result = run.run_round()
        counts = run.engine.evaluate(run.state.model, [run.find(ServerEvaluation).server_data.samples])[0].confusion
        accuracy = np.einsum("yay->", counts.reshape(2, -1, 2)) / counts.sum()
        if round > 1:
            assert float(run.state.selector["rewards"][round - 2]) == pytest.approx(64 ** (accuracy - 0.75) - 1)
            assert run.state.selector["actions"][round - 2].nonzero()[:, 0].tolist() == sorted(result.arrived)
            assert result.metrics["server/samples"] == len(run.find(ServerEvaluation).server_data.samples)


# Episodes


@pytest.fixture
def episode(tiny_federation, tmp_path):
    """Return a function that runs an episode and leaves its checkpoint: name, settings -> federation."""

    def run(name, rounds=3, seed=0, **settings):
        federation = tiny_federation(selector=FavorSelector(**SMALL | settings), cohort_size=1, rounds=rounds, seed=seed)
        federation.fit()
        checkpoint.save(tmp_path / name / "checkpoints" / "last.ckpt", federation.state, {"seed": seed})
        return federation

    return run


def test_an_agent_goes_on_in_the_next_run(episode, tmp_path):
    first = episode("0")
    assert first.state.selector["learner"]["steps"] == 2
    assert first.state.selector["actions"].sum(dim=1)[:2].tolist() == [1, 1], "one client a round is one action"
    second = episode("1", seed=1, agent=str(tmp_path / "0"))
    begun, end = second.selector.init(second.facts), second.state.selector
    assert state.digest(begun["learner"]["online"]) == state.digest(first.state.selector["learner"]["online"])
    assert state.digest(end["components"]) == state.digest(first.state.selector["components"])
    start = state.subtract({name: second.facts.model[name] for name in end["mean"]}, end["mean"])
    assert begun["weights"].numpy() == pytest.approx(coordinates(end["components"], start).expand(5, 4).numpy())
    assert end["learner"]["steps"] == end["seen"] == 4
    second.restore(second.state)  # what a resume does, and this holds the state to the one that `init` returns


def test_an_agent_that_is_used_neither_learns_nor_explores(episode, tmp_path):
    first = episode("0")
    used = episode("1", agent=str(tmp_path / "0"), learns=False, exploration=1.0)
    assert state.digest(used.state.selector["learner"]["online"]) == state.digest(first.state.selector["learner"]["online"])
    assert used.state.selector["seen"] == 2
    assert used.selector.judges() is None
    values = dqn.values(used.state.selector["learner"]["online"], used.state.selector["weights"].reshape(1, -1))
    assert used.run_round().cohort == (int(values.argmax()),)


def test_agents_that_will_not_do_are_refused_in_one_sentence(episode, tmp_path, tiny_federation, caplog):
    caplog.set_level(logging.ERROR)
    facts = episode("0").facts
    uniform = tiny_federation(rounds=1)
    uniform.fit()
    checkpoint.save(tmp_path / "uniform" / "checkpoints" / "last.ckpt", uniform.state, {})
    (tmp_path / "torn" / "checkpoints").mkdir(parents=True)
    whole = (tmp_path / "0" / "checkpoints" / "last.ckpt").read_bytes()
    (tmp_path / "torn" / "checkpoints" / "last.ckpt").write_bytes(whole[:500])
    name = next(iter(facts.parameters))
    other_model = facts.model | {name: torch.zeros(2, *facts.model[name].shape)}
    for folder, changed, settings, said in (
        ("0", {"num_clients": 7}, {}, "has 4 clients instead of 7"),
        ("0", {"model": other_model}, {}, "has another model"),
        ("0", {}, {"hidden": 8}, "has other settings of `components`, `hidden` or `capacity`"),
        ("0", {}, {"components": 3}, "has other settings"),
        ("uniform", {}, {}, "is of another selector"),
        ("torn", {}, {}, "truncated or not a checkpoint"),
        ("nobody", {}, {}, "but there is no .*last.ckpt: give another"),
    ):
        with pytest.raises(ConfigError, match=f"Expected `selector.agent` .*{said}") as info:
            FavorSelector(**SMALL | settings, agent=str(tmp_path / folder)).init(replace(facts, **changed))
        assert "\n" not in str(info.value)


# What it is refused for


@pytest.mark.parametrize(
    ("also", "said"),
    [
        (("server_data=none",), "for selector=favor, but the server has no samples: choose server_data=validation, or another"),
        (("personal=head",), "`personal` keeps layers with the clients"),
        (("capacity=proportions", "submodel=heterofl"), "compares whole updates: choose selector=uniform"),
        (("selector.agent=nowhere",), "Expected `selector.agent` to name the folder of a run"),
    ],
)
def test_it_is_refused_in_one_sentence(also, said, job_of, tmp_path):
    with pytest.raises(ConfigError, match=said) as info:
        build(job_of(*JOB, *also), tmp_path / "run")
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("target", 0.0), ("components", 0), ("hidden", 0), ("discount", 1.1), ("lr", nan), ("batch_size", 0)),
        *(("capacity", 0), ("copy_every", 0), ("exploration", -0.1), ("exploration_decay", 0.0), ("exploration_least", inf)),
    ],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        FavorSelector(**{option: value})


def test_nobody_uses_an_agent_that_has_learnt_nothing():
    with pytest.raises(ValueError, match="Expected an `agent` that has learnt for learns=false, but got none"):
        FavorSelector(learns=False)

"""An algorithm that owns its round, that of docs/one_round.md, runs without an edit of the package."""

import re
from pathlib import Path

import pytest

from fedfacet import Algorithm, UniformSelector, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.compatibility import check_pairs
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.errors import AggregationError, ConfigError, SelectionError
from fedfacet.privacy.central import CentralDP
from fedfacet.storage import checkpoint

PAGE = (Path(__file__).parents[2] / "docs" / "one_round.md").read_text()


@pytest.fixture
def ifca():
    """Return the class of the page."""
    (code,) = re.findall(r"```python\n(# my_algorithm\.py.*?)```", PAGE, re.DOTALL)
    namespace = {}
    exec(code, namespace)
    return namespace["IFCA"]


@pytest.fixture
def one_cluster(ifca):
    """Return IFCA with one cluster that begins as the global model: federated averaging."""

    class OneCluster(ifca):
        def first_models(self, model, verbs):
            return [model]

    return OneCluster


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_with_one_cluster_it_is_fedavg_bit_for_bit(one_cluster, weighting, tiny_federation):
    own = tiny_federation(aggregator=one_cluster(weighting=weighting), rounds=3)
    usual = tiny_federation(aggregator=FedAvg(weighting=weighting), rounds=3)
    results = [(own.run_round(), usual.run_round()) for _ in range(3)]
    assert state.digest(own.state.model) == state.digest(usual.state.model)
    for ours, theirs in results:
        assert ours.arrived == theirs.arrived
        assert ours.metrics["train/loss"] == theirs.metrics["train/loss"]
        assert (ours.ledger.floats_down, ours.ledger.floats_up) == (theirs.ledger.floats_down, theirs.ledger.floats_up)


def test_each_client_trains_the_model_of_least_loss_and_all_that_crosses_is_counted(ifca, tiny_federation):
    asked, trained = [], []

    class Watched(ifca):
        def round(self, server, model, verbs):
            class Noted:
                available, cohort, rng = verbs.available, verbs.cohort, verbs.rng

                def ask(self, query, client_ids, one):
                    asked.append((one, verbs.ask(query, client_ids, one)))
                    return asked[-1][1]

                def train(self, client_ids, one):
                    trained.extend((client_id, one) for client_id in client_ids)
                    return verbs.train(client_ids, one)

            return super().round(server, model, Noted())

    run = tiny_federation(aggregator=Watched(), cohort_size=4)
    result = run.run_round()
    assert sorted(client_id for client_id, _ in trained) == sorted(result.cohort) == sorted(result.arrived)
    for client_id, one in trained:
        assert min(asked, key=lambda entry: entry[1][client_id])[0] is one
    size, cohort = state.num_floats(run.state.model), len(result.cohort)
    assert result.ledger.query_floats_down == 2 * size * cohort, "a cohort is sent both models to compare them"
    assert (result.ledger.floats_down, result.ledger.query_floats_up) == (size * cohort, 2 * cohort)


def test_a_stopped_run_resumes_bit_for_bit(ifca, tiny_federation, tmp_path):
    whole, first, second = (tiny_federation(aggregator=ifca(), rounds=4) for _ in range(3))
    whole.fit()
    for _ in range(2):
        first.run_round()
    checkpoint.save(tmp_path / "last.ckpt", first.state, {"seed": 0})
    second.restore(checkpoint.load(tmp_path / "last.ckpt")[0])
    second.fit()
    assert state.digest(second.state.model) == state.digest(whole.state.model)
    for ours, theirs in zip(second.state.aggregator["models"], whole.state.aggregator["models"], strict=True):
        assert state.digest(ours) == state.digest(theirs)


class Judging(Algorithm):
    def judges(self):
        return "groups"

    def round(self, server, model, verbs):
        return {"counts": verbs.evaluate(model).tolist()}, model


class Blind(Algorithm):
    def round(self, server, model, verbs):
        return {"counts": verbs.evaluate(model).tolist()}, model


class Halved(Algorithm):
    def round(self, server, model, verbs):
        return server, dict(list(model.items())[:1])


class Outside(Algorithm):
    def round(self, server, model, verbs):
        return server, next(verbs.train([99])).delta


class OnAnother(Algorithm):
    def round(self, server, model, verbs):
        return server, next(verbs.train(verbs.cohort, dict(list(model.items())[1:]))).delta


class Twice(Algorithm):
    def round(self, server, model, verbs):
        half = [list(verbs.train(verbs.cohort)) for _ in range(2)]
        return server, state.add(model, self.average(half[0])[0])


def test_it_evaluates_models_on_the_servers_samples(tiny_federation):
    run = tiny_federation(aggregator=Judging())
    result = run.run_round()
    counted = sum(sum(sum(row) for row in table) for table in run.state.aggregator["counts"])
    assert counted == result.metrics["server/samples"] > 0


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Blind(), "Expected samples of the server's to evaluate a model"),
        (Halved(), "Expected Halved.round to return two things"),
        (Outside(), r"Expected Outside.round to train only clients that are available in round 1, but \[99\] are not"),
        (OnAnother(), "Expected OnAnother.round to train clients on a model of the same tensors, but it differs in"),
    ],
)
def test_what_does_not_fit_is_one_sentence(algorithm, sentence, tiny_federation):
    run = tiny_federation(aggregator=algorithm)
    before = run.state
    with pytest.raises((AggregationError, SelectionError), match=sentence):
        run.run_round()
    assert run.state is before


def test_a_client_may_train_twice_and_counts_twice(tiny_federation):
    run = tiny_federation(aggregator=Twice(), selector=UniformSelector())
    result = run.run_round()
    assert len(result.receipts) == 2 * len(result.cohort)
    assert run.state.participation_counts.sum() == len(result.receipts)


@pytest.mark.parametrize(("other", "named"), [("devices", "devices=none"), ("privacy", "privacy=none")])
def test_what_plans_a_round_beforehand_is_refused(other, named):
    given = {"devices": UniformDevices(), "privacy": CentralDP()}
    with pytest.raises(ConfigError, match=f"aggregator=mine to go with {other}=.*, but it owns its round.*{named}"):
        check_pairs({"aggregator": Twice(), other: given[other]}, {"aggregator": "mine"})

"""Who learns what: the policy at build time, at run time and at the client."""

import dataclasses
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.assembly import federate
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.clustered_heterogeneity import ClusteredHeterogeneity
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.clients.queries.shared_heterogeneity import ProjectionHistograms
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.compatibility import check_disclosed
from fedfacet.corrections import Correction
from fedfacet.data.digits import Digits
from fedfacet.data.federated import deal
from fedfacet.deploy.questions import known_queries
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError, DisclosureError
from fedfacet.methods.cbim import Contract, menu_of
from fedfacet.methods.feddiverse import FedDiverseSelector
from fedfacet.methods.fedrk import FedRKSelector
from fedfacet.methods.fmore import Auction, Bid
from fedfacet.methods.scaffold import ScaffoldCorrection
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.partitioners.synthetic import DirichletPartitioner
from fedfacet.privacy.disclosure import KINDS, DisclosurePolicy
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Answer

UNAWARE = {"allows": ["size", "triplet"], "attributes": "nobody"}

QUERIES = list(known_queries().values())


@pytest.fixture(scope="module")
def digits():
    """Five clients who hold coloured digits, and the same with the training samples' attributes in another order."""
    data = deal(Digits().load(None), DirichletPartitioner(num_clients=5, alpha=1.0))
    a = data.dataset.a.copy()
    trained_on = np.concatenate(data.partition.indices)
    a[trained_on] = np.random.default_rng(1).permutation(a[trained_on])
    assert (a != data.dataset.a).sum() > 100
    return data, dataclasses.replace(data, dataset=dataclasses.replace(data.dataset, a=a))


def federation(data, selector, policy=None, **parts):
    with rng.forked(0, "weights"):
        model = SmallCNN(data.dataset.num_classes, data.dataset.input_shape, width=4, hidden=8)
    disclosure = None if policy is None else DisclosurePolicy(**policy)
    local = LocalTraining(unit="steps", amount=2)
    return federate(data, model, selector=selector, disclosure=disclosure, local=local, rounds=3, cohort_size=3, **parts)


def leaves(value):
    return sum(map(leaves, value)) if isinstance(value, list) else 1


# What queries say of themselves


ANNOUNCED = {
    Bid: lambda: Bid().announced(Auction("additive", (1.0, 1.0, 1.0), 5, 3, (1.0, 1.0, 1.0))),
    ClusteredHeterogeneity: lambda: ClusteredHeterogeneity(bias_steps=2),
    EstimatedHeterogeneity: lambda: EstimatedHeterogeneity(bias_steps=2),
    ProjectionHistograms: lambda: ProjectionHistograms(direction=[1.0] * 8, edges=[-9.0, 9.0], cuts=[[-1.0, 0.0, 1.0]] * 10),
    Contract: lambda: Contract().offered(menu_of([1.0, 2.0, 3.0], 2, lowest=0.5, highest=1.0, unit_cost=1.0)),
}
"""What the server tells beside the question, and what would take long."""


def test_there_are_queries_to_look_at():
    assert len(QUERIES) >= 8


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_a_query_reads_what_it_says_and_its_answer_is_as_large(digits, query):
    """Without attributes one that says it reads none answers the same; one that does is refused."""
    asked, answers = ANNOUNCED.get(query, query)(), []
    for hides in (False, True):
        policy = {"allows": list(KINDS), "attributes": "nobody" if hides else "clients"}
        run = federation(digits[0], UniformSelector(), policy, devices=UniformDevices())
        run.disclosure = None  # the client alone has to stand by it
        tasks = [run.order(run.state, client) for client in (0, 3)]
        if hides and "a" in query.reads:
            with pytest.raises(DisclosureError, match=r"^Expected clients that know the attributes"):
                list(run.engine.ask(asked, tasks))
            return
        answers.append(list(run.engine.ask(asked, tasks)))
    assert answers[0] == answers[1]
    for answer in answers[0]:
        assert leaves(answer.value) == answer.floats_up
    assert query.kind in KINDS


# The property that proves it


@pytest.mark.parametrize(
    ("level", "engine"),
    [("none", None), ("estimated_triplet", None), ("estimated_triplet", partial(WorkersEngine, workers=2, device="cpu"))],
    ids=["none", "estimated_triplet", "estimated_triplet-workers"],
)
def test_where_nobody_knows_attributes_they_change_nothing(digits, level, engine):
    """Model, cohorts and answers are the same, bit for bit, whatever the training samples' attributes are."""
    if level == "none":
        selector, policy = UniformSelector, {"allows": ["size"], "attributes": "nobody"}
    else:
        policy = UNAWARE

        def selector():
            return FedDiverseSelector(heterogeneity=EstimatedHeterogeneity(bias_steps=3, attribute_steps=2))

    ends = []
    for data in digits:
        run = federation(data, selector(), policy, **({} if engine is None else {"engine": engine()}))
        results = [run.run_round() for _ in range(3)]
        run.engine.close()
        ends.append((state.digest(run.state.model), [result.cohort for result in results], dict(run.state.disclosures)))
    assert ends[0] == ends[1]


def test_where_the_server_knows_them_they_matter(digits):
    """Or the test above could not fail."""
    cohorts = []
    for data in digits:
        run = federation(data, FedRKSelector(interaction_matrix=DisclosedInteractionMatrix()))
        cohorts.append([run.run_round().disclosed for _ in range(3)] + [dict(run.state.disclosures)])
    assert cohorts[0] != cohorts[1]


# Parts that do not say the truth


class Liar(Query):
    """Says that it asks for sizes, and reads attributes."""

    name = "liar"
    kind = "size"
    reads = frozenset({"y"})
    needs_model = False

    def answer(self, context):
        data = context.data
        batch = next(data.batches())
        columns = len(data.dataset.columns)
        return Answer([int(data.dataset.a.max()), int(batch.a.max()), columns], floats_up=3, samples=0)


class Peeks(L.LightningModule):
    """Sums up the attributes that it is shown in a weight."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))

    def training_step(self, batch, batch_idx):
        return -batch.a.float().mean() * self.model[1].bias[0] + 0 * sum(p.sum() for p in self.parameters())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_a_query_that_lies_finds_no_attributes(digits):
    run = federation(digits[0], UniformSelector(), UNAWARE)
    told = [answer.value for answer in run.engine.ask(Liar(), [run.order(run.state, client) for client in range(5)])]
    assert told == [[-1, -1, 0]] * 5


@pytest.mark.parametrize(
    "engine",
    [
        SequentialEngine,
        pytest.param(partial(WorkersEngine, workers=2), marks=pytest.mark.slow),  # whose processes import this file
        VectorizedEngine,
    ],
    ids=["sequential", "workers", "vectorized"],
)
def test_an_objective_that_reads_attributes_is_shown_none(digits, engine):
    data = digits[0]
    run = federate(
        data,
        Peeks(),
        disclosure=DisclosurePolicy(**UNAWARE),
        local=LocalTraining(unit="steps", amount=1),
        engine=engine(device="cpu"),
        aggregator=FedAvg(),
    )
    before = run.state.model["1.bias"][0].item()
    run.run_round()
    run.engine.close()
    assert run.state.model["1.bias"][0].item() == pytest.approx(before - 1)  # the mean of nothing but -1


class AsksForMore(UniformSelector):
    """Puts a question that nobody saw when the run was built."""

    def select(self, server, context):
        context.ask(make_question(), context.available)
        return super().select(server, context)


def make_question():
    return DisclosedInteractionMatrix()


def test_a_query_made_on_the_way_is_refused_when_it_is_put(digits):
    with pytest.raises(DisclosureError, match=r"`interaction_matrix` is of kind joint_counts"):
        federation(digits[0], AsksForMore(), UNAWARE).run_round()


def test_an_undeclared_query_is_allowed_by_no_policy():
    class Undeclared(Query):
        name = "undeclared"
        needs_model = False

        def answer(self, context):
            return Answer(0, 1, 0)

    with pytest.raises(DisclosureError, match="of kind undeclared"):
        DisclosurePolicy(allows=list(KINDS), attributes="clients").check(Undeclared())


# Noise


def contexts(digits, number):
    clients = federation(digits[0], UniformSelector()).engine.clients
    data = clients.data(0)
    return [
        QueryContext(data, clients.program.module, torch.optim.SGD, 8, seed=seed, round=1, client_id=0)
        for seed in range(number)
    ]


def test_counts_get_laplace_noise_of_scale_one_over_epsilon(digits):
    """Where counts are far from 0, at which noise is cut off; the same key draws the same."""
    epsilon, noise = 0.5, []
    for context in contexts(digits, 300):
        exact = np.array(DisclosedInteractionMatrix().answer(context).value)
        noisy = np.array(DisclosedInteractionMatrix(epsilon=epsilon).answer(context).value)
        assert (noisy >= 0).all()
        noise += (noisy - exact)[exact > 40].tolist()
    assert len(noise) > 300
    assert kstest(noise, laplace(scale=1 / epsilon).cdf).pvalue > 1e-3
    same = [DisclosedInteractionMatrix(epsilon=epsilon).answer(context).value for context in contexts(digits, 1) * 2]
    assert same[0] == same[1]


def test_with_little_noise_a_triplet_is_the_true_one_and_with_much_it_is_not(digits):
    (context,) = contexts(digits, 1)
    true, little, much = (TrueHeterogeneity(epsilon=epsilon).answer(context).value for epsilon in (None, 1e6, 0.01))
    assert little == pytest.approx(true, abs=1e-6)
    assert max(abs(a - b) for a, b in zip(true, much, strict=True)) > 0.01


@pytest.mark.parametrize("query", [DisclosedInteractionMatrix, TrueHeterogeneity])
@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf")])
def test_epsilon_is_a_positive_number(query, epsilon):
    with pytest.raises(ValueError, match=r"^Expected `epsilon` to be larger than 0"):
        query(epsilon=epsilon)


# What methods send along


class Tells(Correction):
    """Sends along something, and does not say what."""

    provides = frozenset({"told"})


def test_what_methods_send_along_is_held_to_the_policy_too(digits):
    """SCAFFOLD sends another view of the update; a correction that does not say what it sends is refused."""
    clients = federation(digits[0], UniformSelector()).engine.clients

    def check(correction):
        objective = ClassificationObjective(clients.objective.model, correction=correction)
        told = dataclasses.replace(clients, objective=objective)
        check_disclosed(told, [], DisclosurePolicy(**UNAWARE), {})

    check(ScaffoldCorrection())
    with pytest.raises(ConfigError, match=r"correction=Tells sends what is of kind undeclared"):
        check(Tells())

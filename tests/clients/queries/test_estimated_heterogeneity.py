"""FedDiverse's estimate against the algorithms written down once more, in plain torch, as they are meant.

Shared with the code under test are the named random streams and nothing else: which positions a batch has, and under which seed
the layers draw, is part of what a run is reproducible by.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.errors import ConfigError

SEED, ROUND = 3, 2


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def context_of(client, model, optimizer=None, *, client_id=0, batch_size=28):
    return QueryContext(
        data=client,
        model=model,
        make_optimizer=optimizer if optimizer is not None else sgd,
        batch_size=batch_size,
        seed=SEED,
        round=ROUND,
        client_id=client_id,
    )


# --- the oracle ------------------------------------------------------------------------------------------------------------


def balanced(values):
    """The probability of each entry when every value is to be equally likely."""
    distinct = {value: list(values).count(value) for value in values}
    return np.array([1 / (len(distinct) * distinct[value]) for value in values])


def sgd_steps(parameters, losses, rate, momentum=0.9):
    velocity = [torch.zeros_like(parameter) for parameter in parameters]
    for loss in losses:
        gradients = torch.autograd.grad(loss(), parameters)
        with torch.no_grad():
            for parameter, gradient, v in zip(parameters, gradients, velocity, strict=True):
                v.mul_(momentum).add_(gradient)
                parameter.sub_(rate * v)


def algorithm_2(model, x, target, key, client_id, *, steps, q, rate, batch_size, class_balanced):
    """The biased model: its features of all samples, and which of them it gets right (the majority) or wrong."""
    draws = rng.stream(SEED, "bias-batches", ROUND, client_id, key)
    size = min(batch_size, len(target))
    model.train()

    def loss():
        chosen = draws.choice(len(target), size=size, p=balanced(target.tolist()) if class_balanced else None)
        log_p = model(x[chosen]).log_softmax(dim=1)[range(size), target[chosen]]
        return ((1 - (q * log_p).exp()) / q).mean()  # p**q itself has an infinite slope where p underflows

    sgd_steps(list(model.parameters()), [loss] * steps, rate)
    model.eval()
    with torch.no_grad():
        return model.features(x), model(x).argmax(dim=1) == target


def algorithms_2_to_4(
    client,
    received,
    *,
    client_id=0,
    bias_steps=50,
    attribute_steps=10,
    q=0.3,
    rate=0.02,
    batch_size=28,
    class_balanced=True,
    head_balanced=True,
    one_vs_rest=False,
    min_class_samples=2,
):
    x, y, _ = client.batch(np.arange(len(client)))
    num_classes = client.dataset.num_classes
    options = {"steps": bias_steps, "q": q, "rate": rate, "batch_size": batch_size, "class_balanced": class_balanced}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.torch_seed(SEED, "estimate", ROUND, client_id))
        views = {}
        if one_vs_rest:
            for label in range(num_classes):
                if (y == label).sum() >= min_class_samples:
                    model = copy.deepcopy(received)
                    model.head = nn.Linear(received.head.in_features, 2)
                    views[label] = algorithm_2(model, x, (y == label).long(), label, client_id, **options)
        else:
            view = algorithm_2(copy.deepcopy(received), x, y, 0, client_id, **options)
            views = {label: view for label in range(num_classes) if (y == label).any()}

        # Algorithm 3: the pivot's samples, told apart by whether they were classified correctly, on its extractor's features.
        def difference(label):
            right = views[label][1][y == label]
            return abs(int(right.sum()) - int((~right).sum()))

        pivot = sorted(views, key=lambda label: (difference(label), label))[0]
        features, right = views[pivot]
        head = nn.Linear(features.shape[1], 2)
        mine = (y == pivot).nonzero().flatten()
        minority = (~right[mine]).long()
        draws = rng.stream(SEED, "attribute-batches", ROUND, client_id)
        size = min(batch_size, len(mine))

        def loss():
            chosen = draws.choice(len(mine), size=size, p=balanced(minority.tolist()) if head_balanced else None)
            log_p = head(features[mine[chosen]]).log_softmax(dim=1)
            return -log_p[range(size), minority[chosen]].mean()

        sgd_steps(list(head.parameters()), [loss] * attribute_steps, rate)

    # Algorithm 4: the pivot's row are its own two counts, the others' attributes are predicted.
    matrix = np.zeros((num_classes, 2), dtype=int)
    for position, label in enumerate(y.tolist()):
        predicted = head(features[position]).argmax().item()
        matrix[label, int(not right[position]) if label == pivot else predicted] += 1
    return matrix.tolist()


# --- on the main job's data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # every matrix of GSC, half of them each night
    "client_id", [0, 4, 6, 8, *(pytest.param(client_id, marks=pytest.mark.slow) for client_id in (3, 5, 7, 23))]
)
def test_it_is_the_algorithms_on_the_digits(client_id, digits, small_cnn):
    client = digits.clients[client_id]
    matrix, samples = EstimatedHeterogeneity().estimate(context_of(client, small_cnn, client_id=client_id))
    assert matrix.counts.tolist() == algorithms_2_to_4(client, small_cnn, client_id=client_id)
    assert matrix.counts.sum(axis=1).tolist() == np.bincount(client.y, minlength=2).tolist()
    assert samples == 50 * 28 + 40  # the biased model's batches, and one pass over all samples


@pytest.mark.parametrize(
    ("ours", "oracle"),
    [
        ({"bias_steps": 49}, {"bias_steps": 49}),
        ({"attribute_steps": 5}, {"attribute_steps": 5}),
        ({"q": 0.9}, {"q": 0.9}),
        ({"class_balanced": False}, {"class_balanced": False}),
        ({"balanced": False}, {"head_balanced": False}),
    ],
)
def test_every_setting_is_the_algorithms(ours, oracle, digits, small_cnn):
    """On an attribute-imbalanced client, where what the biased model gets right is least clear-cut."""
    context = context_of(digits.clients[5], small_cnn, client_id=5)
    plain, made = (EstimatedHeterogeneity(**settings).estimate(context)[0].counts.tolist() for settings in ({}, ours))
    assert plain != made == algorithms_2_to_4(digits.clients[5], small_cnn, client_id=5, **oracle)


def test_only_the_triplet_leaves_the_client(digits, small_cnn):
    query, context = EstimatedHeterogeneity(bias_steps=5), context_of(digits.clients[0], small_cnn)
    answer = query.answer(context)
    assert answer.value == list(query.estimate(context)[0].triplet)
    assert all(type(value) is float for value in answer.value)
    assert answer.floats_up == 3
    assert (query.name, query.needs_model) == ("heterogeneity", True)


def test_attributes_are_never_looked_at(digits, small_cnn, tabular):
    draw = np.random.default_rng(0)
    rows, y = draw.integers(0, 256, size=(16, 192)), [0, 1] * 8
    matrices = []
    for a in ([0] * 16, draw.integers(2, size=16)):
        client = tabular(rows, y, a)
        client.dataset.inputs.tensor = client.dataset.inputs.tensor.view(16, 3, 8, 8)
        matrices.append(EstimatedHeterogeneity(bias_steps=5).estimate(context_of(client, small_cnn))[0].counts.tolist())
    assert matrices[0] == matrices[1]


def test_it_is_deterministic_and_leaves_everything_as_it_was(digits, small_cnn):
    weights = state.clone(small_cnn.state_dict())
    small_cnn.eval()
    before = torch.get_rng_state()
    triplets = [EstimatedHeterogeneity().answer(context_of(digits.clients[5], small_cnn, client_id=5)) for _ in range(2)]
    assert triplets[0] == triplets[1]
    assert torch.equal(torch.get_rng_state(), before)
    assert state.digest(small_cnn.state_dict()) == state.digest(weights)
    assert not small_cnn.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in small_cnn.parameters())


def test_clients_and_rounds_draw_for_themselves(digits, small_cnn, tabular):
    """The same samples under another client's number give other batches."""
    client = tabular(np.arange(12).reshape(12, 1), [0, 1] * 6)
    model = Linear([[0.5], [-0.5]])
    fetched = []
    for client_id in (0, 1):
        client.dataset.inputs.fetched.clear()
        EstimatedHeterogeneity(bias_steps=3).answer(context_of(client, model, client_id=client_id))
        fetched.append(client.dataset.inputs.fetched[:3])
    assert fetched[0] != fetched[1]


# --- on clients made for the purpose ---------------------------------------------------------------------------------------


class Linear(nn.Module):
    """Features are the pixels, scaled to [-1, 1]; the head is given."""

    def __init__(self, weight):
        super().__init__()
        weight = torch.tensor(weight, dtype=torch.float32)
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.head.weight = nn.Parameter(weight)

    def features(self, x):
        return x.flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


IDENTITY = [[-1.0], [1.0]]  # a bright pixel is class 1


def frozen_then_learning(rates=(0.0, 1.0)):
    """An optimizer factory that leaves the biased model as it was received, so that its mistakes are known beforehand."""
    queue = list(rates)
    return lambda parameters: torch.optim.SGD(parameters, lr=queue.pop(0))


def pixels(*runs):
    """Rows of one pixel: (how many, bright or not) after another."""
    return [[255 if bright else 0] for count, bright in runs for _ in range(count)]


@pytest.mark.parametrize(
    ("class_0", "class_1", "expected"),
    [
        # (right, wrong) of each class; the pivot's row is its counts, the other's its own pixels under the pivot's rule.
        ((6, 4), (3, 3), [[4, 6], [3, 3]]),  # |6 - 4| > |3 - 3|: class 1, where dark is wrong, so class 0's dark go to column 1
        ((3, 3), (6, 4), [[3, 3], [4, 6]]),  # mirrored: class 0
        ((6, 4), (4, 6), [[6, 4], [6, 4]]),  # a tie: the lower class
        ((4, 6), (6, 4), [[4, 6], [4, 6]]),  # a tie with the sign the other way round
        ((9, 1), (5, 2), [[1, 9], [5, 2]]),  # class 1, although class 0 has more samples
    ],
)
def test_the_pivot_is_the_class_of_the_smallest_difference(class_0, class_1, expected, tabular):
    rows = pixels((class_0[0], False), (class_0[1], True), (class_1[0], True), (class_1[1], False))
    client = tabular(rows, [0] * sum(class_0) + [1] * sum(class_1))
    query = EstimatedHeterogeneity(bias_steps=1, attribute_steps=60)
    matrix, _ = query.estimate(context_of(client, Linear(IDENTITY), frozen_then_learning()))
    assert matrix.counts.tolist() == expected


def test_the_released_code_takes_the_lowest_class(tabular):
    client = tabular(pixels((6, False), (4, True), (3, True), (3, False)), [0] * 10 + [1] * 6)
    query = EstimatedHeterogeneity(bias_steps=1, attribute_steps=60, pivot="lowest_class")
    matrix, _ = query.estimate(context_of(client, Linear(IDENTITY), frozen_then_learning()))
    assert matrix.counts.tolist() == [[6, 4], [3, 3]]


@pytest.mark.parametrize(("bright", "column"), [(False, 0), (True, 1)])
def test_a_client_on_which_everything_is_right_or_wrong(bright, column, tabular):
    """There is one attribute value to be seen: fully attribute-imbalanced, and nothing to correlate."""
    client = tabular(pixels((5, bright), (5, not bright)), [0] * 5 + [1] * 5)
    query = EstimatedHeterogeneity(bias_steps=1, attribute_steps=60)
    matrix, _ = query.estimate(context_of(client, Linear(IDENTITY), frozen_then_learning()))
    pivot_row = matrix.counts[0].tolist()
    assert pivot_row[column] == 5
    assert pivot_row[1 - column] == 0
    assert matrix.counts.sum() == 10


@pytest.mark.parametrize("num_classes", [2, 4])
def test_a_client_with_a_single_class(num_classes, tabular):
    client = tabular(pixels((7, False), (2, True)), [1] * 9, num_classes=num_classes)
    model = Linear([[(-1.0) ** label] for label in range(num_classes)])
    answer = EstimatedHeterogeneity(bias_steps=3, attribute_steps=3).answer(context_of(client, model))
    matrix, _ = EstimatedHeterogeneity(bias_steps=3, attribute_steps=3).estimate(context_of(client, model))
    assert matrix.counts.sum(axis=1).tolist() == [9 if label == 1 else 0 for label in range(num_classes)]
    assert answer.value[0] == 1.0
    assert answer.value[2] == 0.0
    assert np.isfinite(answer.value).all()


def test_a_client_with_a_single_sample(tabular):
    client = tabular([[7]], [0], num_classes=2)
    matrix, samples = EstimatedHeterogeneity(bias_steps=3).estimate(context_of(client, Linear(IDENTITY)))
    assert matrix.counts.sum() == 1
    assert samples == 3 * 1 + 1


class Forgetful(Linear):
    """Sees next to nothing while it trains."""

    def features(self, x):
        return nn.functional.dropout(x.flatten(1), 0.99, self.training)


def test_samples_are_judged_in_eval_mode(tabular):
    client = tabular(pixels((6, False), (4, True), (3, True), (3, False)), [0] * 10 + [1] * 6)
    query = EstimatedHeterogeneity(bias_steps=1, attribute_steps=60)
    matrix, _ = query.estimate(context_of(client, Forgetful(IDENTITY), frozen_then_learning()))
    assert matrix.counts.tolist() == [[4, 6], [3, 3]]


class CountingSGD(torch.optim.SGD):
    """SGD that says how many steps it took."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_steps_are_exactly_those_asked_for(num_classes, tabular):
    made = []

    def optimizer(parameters):
        made.append(CountingSGD(parameters, lr=0.1))
        return made[-1]

    client = tabular(np.arange(40).reshape(20, 2), list(range(num_classes)) * (20 // num_classes))
    model = Linear(np.eye(num_classes)[:, :2].tolist())
    _, samples = EstimatedHeterogeneity().estimate(context_of(client, model, optimizer, batch_size=8))
    num_biased = 1 if num_classes == 2 else num_classes
    assert [one.steps for one in made] == [50] * num_biased + [10]
    # What it passes through a model is what it says: the batches, and one look at all samples per biased model.
    assert [len(batch) for batch in client.dataset.inputs.fetched] == ([8] * 50 + [20]) * num_biased
    assert samples == num_biased * (50 * 8 + 20)


@pytest.mark.parametrize(("class_balanced", "share"), [(True, 0.5), (False, 0.1)])
def test_the_biased_models_batches_are_class_balanced(class_balanced, share, tabular):
    """18 samples of one class and 2 of the other, 4,000 draws: a half or a tenth, within four standard deviations."""
    client = tabular(np.zeros((20, 1)), [0] * 18 + [1] * 2)
    query = EstimatedHeterogeneity(bias_steps=200, attribute_steps=1, class_balanced=class_balanced)
    query.answer(context_of(client, Linear(IDENTITY), batch_size=28))
    drawn = np.concatenate(client.dataset.inputs.fetched[:200])
    assert len(drawn) == 4000
    assert np.isin(drawn, [18, 19]).mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000))


# --- more than two classes -------------------------------------------------------------------------------------------------


@pytest.fixture
def four_classes(tabular):
    draw = np.random.default_rng(4)
    y = np.array([0] * 12 + [1] * 9 + [2] * 6 + [3])
    rows = draw.integers(0, 60, size=(28, 5)) + np.eye(5, dtype=int)[y] * 120
    return tabular(rows, y)


@pytest.fixture
def four_way_model():
    with rng.forked(0, "weights"):
        return Extractor()


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.head = nn.Linear(7, 4)

    def features(self, x):
        return self.hidden(x.flatten(1)).relu()

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("min_class_samples", [1, 2, 7])
@pytest.mark.parametrize("client_id", [0, 1, 2])
def test_one_against_the_rest_is_the_algorithms(client_id, min_class_samples, four_classes, four_way_model):
    query = EstimatedHeterogeneity(bias_steps=20, min_class_samples=min_class_samples)
    matrix, samples = query.estimate(context_of(four_classes, four_way_model, client_id=client_id, batch_size=8))
    assert matrix.counts.tolist() == algorithms_2_to_4(
        four_classes,
        four_way_model,
        client_id=client_id,
        bias_steps=20,
        batch_size=8,
        one_vs_rest=True,
        min_class_samples=min_class_samples,
    )
    served = {1: 4, 2: 3, 7: 2}[min_class_samples]
    assert samples == served * (20 * 8 + 28)
    assert matrix.counts.sum(axis=1).tolist() == [12, 9, 6, 1]


def test_where_every_class_is_scarce_the_largest_stands_in(four_classes, four_way_model):
    query = EstimatedHeterogeneity(bias_steps=5, min_class_samples=100)
    matrix, samples = query.estimate(context_of(four_classes, four_way_model, batch_size=8))
    assert samples == 5 * 8 + 28
    assert matrix.counts.sum(axis=1).tolist() == [12, 9, 6, 1]


def test_a_single_biased_model_for_all_classes(four_classes, four_way_model):
    query = EstimatedHeterogeneity(bias_steps=20, multiclass="single")
    matrix, samples = query.estimate(context_of(four_classes, four_way_model, batch_size=8))
    assert matrix.counts.tolist() == algorithms_2_to_4(four_classes, four_way_model, bias_steps=20, batch_size=8)
    assert samples == 20 * 8 + 28


@pytest.mark.parametrize(("num_classes", "models"), [(10, 10), (11, 1)])
def test_above_ten_classes_auto_means_single(num_classes, models, tabular):
    client = tabular(np.arange(2 * num_classes).reshape(-1, 1), list(range(num_classes)) * 2)
    model = Linear(np.zeros((num_classes, 1)).tolist())
    _, samples = EstimatedHeterogeneity(bias_steps=2).estimate(context_of(client, model, batch_size=4))
    assert samples == models * (2 * 4 + 2 * num_classes)


class Headless(nn.Module):
    def features(self, x):
        return x


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Flatten(), nn.Linear(5, 4)), Headless(), nn.ModuleDict({"head": nn.Linear(5, 4)})]
)
def test_a_model_without_features_or_head_is_refused_in_one_sentence(model):
    """When the run is built, before anybody is asked."""
    message = rf"`features\(x\)` and a linear `head`, .* but {type(model).__name__} lacks them: .*heterogeneity=true"
    with pytest.raises(ConfigError, match=message):
        EstimatedHeterogeneity().check(model)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_an_answer_refuses_such_a_model_too(num_classes, tabular):
    client = tabular(pixels((3, False), (3, True)), [0] * 3 + [1] * 3, num_classes=num_classes)
    context = context_of(client, nn.Sequential(nn.Flatten(), nn.Linear(1, num_classes)))
    with pytest.raises(ConfigError, match=r"Expected a model with `features\(x\)` and a linear `head`"):
        EstimatedHeterogeneity().estimate(context)


def test_a_model_with_both_is_taken(small_cnn):
    EstimatedHeterogeneity().check(small_cnn)


@pytest.mark.parametrize(
    "settings",
    [
        {"bias_steps": 0},
        {"attribute_steps": 0},
        {"min_class_samples": 0},
        {"bias_steps": 2.5},
        {"q": 0},
        {"q": 1.1},
        {"multiclass": "all_pairs"},
        {"pivot": "largest"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(settings))}`"):
        EstimatedHeterogeneity(**settings)


# --- the truth -------------------------------------------------------------------------------------------------------------


def test_the_true_triplet_is_that_of_the_partition(digits, small_cnn):
    """Table 6 at a fifth: 18 and 2 samples a cell keep every triplet exactly."""
    imbalance = 1 + (0.9 * np.log(0.9) + 0.1 * np.log(0.1)) / np.log(2)
    query = TrueHeterogeneity()
    answers = [query.answer(context_of(client, small_cnn)) for client in digits.clients]
    expected = [[imbalance, 0, 0]] * 4 + [[0, imbalance, 0]] * 4 + [[0, 0, imbalance]] * 16
    assert np.array([answer.value for answer in answers]) == pytest.approx(np.array(expected), abs=1e-12)
    assert {(answer.floats_up, answer.samples) for answer in answers} == {(3, 0)}
    assert (query.name, query.needs_model) == ("heterogeneity", False)

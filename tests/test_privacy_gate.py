"""A run that claims an epsilon refuses what that does not count, or says it."""

from pathlib import Path

import pytest

from fedfacet.build import build
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError, DisclosureError
from fedfacet.mechanisms.privacy import DifferentialPrivacy

NOISE = "heterogeneity.noise_multiplier=2"


@pytest.fixture
def private(tmp_path):
    """Return a function: overrides -> a small federation."""

    def make(*overrides):
        job, _ = compose_job("train", ["debug=smoke", "callbacks=[]", "logger=[]", *overrides])
        return build(job, Path(tmp_path))

    return make


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("privacy=dp_sgd",), "selector=feddiverse asks clients for `heterogeneity`"),
        (("privacy=dp_sgd", "selector=pow_d"), "asks clients for `local_loss`"),
        (("privacy=dp_sgd", "selector=hcsfed"), "learns from what clients send"),
        (("privacy=dp_sgd", "selector=uniform", "aggregator=q_fedavg"), "aggregator=q_fedavg asks clients for"),
        (("privacy=dp_sgd", "selector=uniform", "scheduler=plateau", "scheduler.metric=train/loss"), "the scheduler follows"),
        (("method=dp_fedavg", "selector=size_weighted"), "selector=size_weighted asks clients for `num_samples`"),
        (("method=dp_fedavg", "selector=size_weighted", "selector.num_samples.noise_multiplier=1"), "`num_samples`"),
        (("method=dp_fedavg", "privacy.cover=updates", "aggregator=krum"), "aggregator=krum looks at each"),
    ],
)
def test_what_nobody_counts_is_refused(private, overrides, sentence):
    with pytest.raises(ConfigError, match=f"whose epsilon covers .*alone, but .*{sentence}"):
        private(*overrides)


def test_first_rounds_of_everybody_are_refused_under_central_noise(private):
    with pytest.raises(
        ConfigError, match=r"^Expected selector=feddiverse to go with privacy=central, but it takes all .* first"
    ):
        private("method=dp_fedavg", "selector=feddiverse", NOISE, "selector.pretraining_rounds=1")


@pytest.mark.parametrize(
    ("method", "heterogeneity"),
    [
        *(("privacy=dp_sgd", heterogeneity) for heterogeneity in ("estimated", "clustered", "true")),
        *(("method=dp_fedavg", heterogeneity) for heterogeneity in ("estimated", "true")),
    ],
)
def test_feddiverse_goes_with_an_epsilon_that_counts_its_question(private, method, heterogeneity):
    more = [] if heterogeneity == "true" else ["heterogeneity.bias_steps=2"]
    more += ["heterogeneity.max_norm=30"] if heterogeneity == "true" and method != "privacy=dp_sgd" else []
    federation = private(method, "aggregator=fedavg", "selector=feddiverse", f"heterogeneity={heterogeneity}", NOISE, *more)
    assert len(federation.run_round().cohort) == 3
    answers = federation.state.disclosures["heterogeneity"].values()
    assert all(0 <= measure <= 1 for answer in answers for measure in answer)
    assert federation.state.slots["privacy"]["times"] == {"heterogeneity": 1}


def test_what_is_taken_all_the_same_is_said(private):
    federation = private("method=dp_fedavg", "selector=oort", "privacy.cover=updates", "devices=lognormal")
    federation.run_round()
    said = federation.find(DifferentialPrivacy).accounting.summary(federation.state)
    assert said["outside"][0] == "sample counts, training losses and who took part"
    assert "answers to `num_samples` (how many samples a client has)" in said["outside"]
    assert "what is told where selector=oort learns from what clients send" in said["outside"]
    assert all(what in said["says"] for what in said["outside"])
    assert said["covers"] == ["models"]


def test_a_mechanism_of_ones_own_is_outside_what_epsilon_covers(private):
    """It may see updates before the noise, whatever it does with them."""
    options = "method=dp_fedavg", "+mechanisms.mine._target_=fedfacet.mechanism.Mechanism"
    with pytest.raises(ConfigError, match=r"no mechanism of your own.*but got Mechanism: .*privacy\.cover=updates"):
        private(*options)
    federation = private(*options, "privacy.cover=updates")
    federation.run_round()
    said = federation.find(DifferentialPrivacy).accounting.summary(federation.state)
    assert "what the mechanism Mechanism makes of a round" in said["outside"]


def test_a_question_that_nobody_foresaw_is_refused_when_it_is_put(private):
    federation = private("privacy=dp_sgd", "selector=uniform")

    class Asks(type(federation.selector)):
        def select(self, server, context):
            context.ask(DisclosedInteractionMatrix(noise_multiplier=3.0), context.available)
            return super().select(server, context)

    federation.selector.__class__ = Asks
    with pytest.raises(DisclosureError, match="Expected questions whose answers epsilon counts, but `interaction_matrix`"):
        federation.run_round()

"""Where nobody knows the sensitive attribute, no selector and no aggregator of conf/ can depend on it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedfacet import build as build_module
from fedfacet import config, state
from fedfacet.errors import ConfigError, DisclosureError
from fedfacet.privacy.disclosure import KINDS

METHODS = {file.stem for file in (Path(__file__).parents[2] / "conf" / "method").glob("*.yaml")}
TELL_ATTRIBUTES = {"joint_counts", "group_performance"}
UNAWARE = ["disclosure=none", f"disclosure.allows=[{','.join(sorted(set(KINDS) - TELL_ATTRIBUTES))}]"]

READ_ATTRIBUTES = {
    "selector": {"fedrk"},
    "aggregator": {"bounded_group_loss", "fair_lagrangian", "fairfed", "fedgft", "fedminmax", "fpfl", "global_reweighing"},
}
"""Those that are refused; all others run, and must not depend on what they cannot know."""

USUAL = {
    "test_a_selector_does_not_depend_on_attributes_that_nobody_knows": READ_ATTRIBUTES["selector"]
    | {"active_fl", "cbim", "diversity_score", "favor", "feddiverse", "k_fed", "lag", "pow_d", "probe_fairness"},
    "test_an_aggregator_does_not_depend_on_attributes_that_nobody_knows": READ_ATTRIBUTES["aggregator"]
    | {"agnostic", "ddaba", "fair_accuracy", "fair_fate", "fedgh", "fedpac", "q_fedavg", "rank_trimmed"},
}
"""Those that ask clients, or judge their models; what others see of a client, these see too."""

LOOK_AT_DEVICES = {"bandwidth_threshold", "cbim", "fedcs", "flame", "fmore"}
"""Those that are refused without."""


@pytest.fixture
def ends(monkeypatch):
    """Return a function: overrides -> how the run ends with attributes as they are, and in another order."""

    def run(*overrides):
        job, _ = config.compose_job("train", [*overrides, "debug=smoke", "federation.rounds=2", "callbacks=[]", "logger=[]"])
        found = []
        for changed in (lambda data: data, permuted):
            monkeypatch.setattr(build_module, "load_data", lambda job, changed=changed: changed(load_data(job)))
            federation = build_module.build(job.copy(), None)
            cohorts = [federation.run_round().cohort for _ in range(2)]
            found.append((state.digest(federation.state.model), cohorts, federation.state.disclosures))
        return found

    load_data = build_module.load_data
    return run


def permuted(data):
    a, trained_on = data.dataset.a.copy(), np.concatenate(data.partition.indices)
    a[trained_on] = np.random.default_rng(1).permutation(a[trained_on])
    assert (a != data.dataset.a).any()
    return replace(data, dataset=replace(data.dataset, a=a))


@pytest.mark.parametrize("group", ["selector", "aggregator"])
def test_those_that_read_attributes_are_options(group, request):
    assert READ_ATTRIBUTES[group] <= {file.stem for file in (Path(__file__).parents[2] / "conf" / group).glob("*.yaml")}


@pytest.mark.parametrize(
    "overrides", [["selector=fedrk"], ["selector=feddiverse", "heterogeneity=true"], ["method=fedminmax"]], ids=" ".join
)
def test_where_somebody_knows_them_they_matter(overrides, ends):
    """Or the tests below could not fail."""
    as_it_is, in_another_order = ends(*overrides)
    assert as_it_is != in_another_order


def test_a_selector_does_not_depend_on_attributes_that_nobody_knows(selector_option, ends):
    group = "method" if selector_option in METHODS else "selector"
    devices = ["devices=uniform"] if selector_option in LOOK_AT_DEVICES else []
    check("selector", selector_option, [f"{group}={selector_option}", *devices], ends)


def test_an_aggregator_does_not_depend_on_attributes_that_nobody_knows(aggregator_option, ends):
    group = "method" if aggregator_option in METHODS else "aggregator"
    check("aggregator", aggregator_option, [f"{group}={aggregator_option}"], ends)


def check(group, option, overrides, ends):
    if option in READ_ATTRIBUTES[group]:
        with pytest.raises((ConfigError, DisclosureError), match=r"^Expected "):
            ends(*overrides, *UNAWARE)
        return
    as_it_is, in_another_order = ends(*overrides, *UNAWARE)
    assert as_it_is == in_another_order

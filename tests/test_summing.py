"""A mean that the engine makes of updates: what is counted, dropped and rejected; ranks are in ``tests/cli``."""

import pytest
import torch

from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.transforms import UpdateTransform

JOB = (
    "experiment=digits_gsc", "model.width=2", "local.unit=steps", "local.amount=2", "threads=1",
    "federation.cohort_size=5", "selector=uniform", "callbacks=evaluate", "logger=[]", "engine=distributed",
)  # fmt: skip


def federation(*overrides, run_dir=None):
    config, _ = compose_job("train", [*JOB, *overrides])
    return build(config, run_dir)


class Broken(UpdateTransform):
    """Some clients send infinity, and others a tensor too few."""

    def apply(self, update, rng):
        name = next(iter(update.delta))
        if update.client_id % 4 == 1:
            update.delta[name] = update.delta[name] / 0
        if update.client_id % 4 == 2:
            del update.delta[name]
        return update


def rounds(*overrides, transforms=(), number=2):
    run = federation(*overrides)
    object.__setattr__(run.engine.clients, "transforms", list(transforms))
    return [run.run_round() for _ in range(number)], run.state


@pytest.mark.parametrize(
    "settings",
    [
        ("aggregator=fedavg", "aggregator.weighting=samples"),
        ("aggregator=fedavgm",),
        ("aggregator=fedadam", "model=resnet8", "local.batch_size=8"),
        ("aggregator=fedavg", "personal=head"),
        ("aggregator=fedavg", "objective=ditto"),
        ("aggregator=fedavg", "federation.cohort_size=1"),
    ],
    ids=lambda settings: " ".join(settings),
)
def test_a_round_is_that_of_the_sequential_order_but_for_the_last_bits(settings):
    (results, cohort), (others, tree) = (rounds(*settings, f"engine.sums={sums}") for sums in ("cohort", "tree"))
    for one, other in zip(results, others, strict=True):
        assert (one.cohort, one.ledger, one.arrived) == (other.cohort, other.ledger, other.arrived)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-3, nan_ok=True)
    torch.testing.assert_close(tree.model, cohort.model, rtol=1e-4, atol=1e-5)
    assert tree.memory.keys() == cohort.memory.keys()


def test_a_bad_update_is_an_absent_leaf_and_counts_as_elsewhere(caplog):
    settings = ("aggregator=fedavg", "federation.cohort_size=12", "federation.on_bad_update=drop")
    told, found = [], []
    for sums in ("cohort", "tree"):
        caplog.clear()
        found.append(rounds(*settings, f"engine.sums={sums}", transforms=[Broken()], number=1))
        told.append([record.getMessage() for record in caplog.records if "dropped" in record.getMessage()])
    assert told[0] == told[1] != []
    ([one], cohort), ([other], tree) = found
    assert (one.ledger, one.arrived, one.receipts) == (other.ledger, other.arrived, other.receipts)
    torch.testing.assert_close(tree.model, cohort.model, rtol=1e-4, atol=1e-5)


def test_a_bad_update_is_named():
    with pytest.raises(BadUpdateError, match=r"from client \d+ in round 1, but (it holds NaN|its delta lacks)"):
        rounds("engine.sums=tree", "federation.cohort_size=24", transforms=[Broken()], number=1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (("aggregator=krum",), "aggregator=krum looks at each update"),
        (("selector=fedpns",), "selector=fedpns looks at each update"),
        (("privacy=central", "model.width=2"), "privacy=central clips each update"),
        (("capacity=largest", "submodel=heterofl", "aggregator=fedavg"), "clients hold parts of the model"),
        (("callbacks=[evaluate,membership]",), "callbacks.membership looks at each update"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_looks_at_single_updates_is_rejected(settings, what):
    with pytest.raises(ConfigError, match=f"^With engine.sums=tree only the mean .*{what}.*engine.sums=cohort"):
        federation("engine.sums=tree", *settings)

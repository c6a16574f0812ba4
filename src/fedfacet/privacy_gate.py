"""What a run that claims an epsilon refuses: parts that learn from clients what nobody counts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from fedfacet import rng
from fedfacet.accounting import Accounting, in_words, remedy
from fedfacet.aggregators.base import Aggregator
from fedfacet.clients.private_gradients import PrivateGradients
from fedfacet.clients.recorded_steps import complaint
from fedfacet.clients.trainer import Clients
from fedfacet.compatibility import OPTIONAL
from fedfacet.corrections import Correction
from fedfacet.errors import ConfigError
from fedfacet.mechanism import Mechanism
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.optional import required
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.query import Query
from fedfacet.schedulers import Scheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.transforms import ClipAndNoise
from fedfacet.types import Broadcast, ClientTask

ALWAYS_OUTSIDE = {
    "client": "sample counts, training losses and who took part",
    "sample": "training losses and who took part",
}
"""Unit -> what ``metrics.csv`` tells whoever sees it, whatever the parts are."""


def account(
    clients: Clients,
    central: CentralDP | None,
    aggregator: Aggregator,
    selector: ClientSelector,
    scheduler: Scheduler | None,
    cohort_size: int,
    names: Mapping[str, Any],
    asked: Iterable[tuple[Query, str]],
) -> Accounting | None:
    """Hold parts to what an epsilon covers, and return the ledger of what it counts; ``None`` without ``privacy``.

    ``asked`` has the questions that parts put, and who puts each.

    Raises:
        ConfigError: naming a part by which clients' data would have an influence that nobody counts.
    """
    privacy: Privacy | None = central or clients.privacy
    noised = _noised(aggregator)
    if noised and central is None:
        raise ConfigError(
            f"`aggregator.noise_multiplier` of aggregator={names['aggregator']} is noise of the server's, and privacy is not "
            "central: choose privacy=central, or null."
        )
    if privacy is None:
        return None
    if central is not None:
        _check_sums(clients, central, aggregator, cohort_size, names)
    questions, outside = {}, [ALWAYS_OUTSIDE[privacy.unit]]
    for query, of in asked:
        if (multiplier := query.counted(privacy.unit)) is not None:
            questions[query.name] = multiplier
            continue
        # Central noise covers models that nobody else's knowledge has gone into, whether or not it is large enough to prove.
        if privacy.cover == "all" and (privacy.claims or central is not None):
            raise _refusal(names, f"{of} asks clients for `{query.name}`, which it does not count: {remedy(query.name)}")
        outside.append(in_words(query))
    metric = str(getattr(scheduler, "metric", "val/"))
    for learns, what, instead in (
        (
            selector.observe is not None,
            f"selector={names['selector']} learns from what clients send",
            "choose poisson, uniform or round_robin",
        ),
        (not metric.startswith("val/"), f"the scheduler follows {metric}", "choose a metric of the validation set"),
    ):
        if learns and privacy.cover == "all" and (privacy.claims or central is not None):
            raise _refusal(names, f"{what}: {instead}, or privacy.cover=updates")
        outside += [f"what is told where {what}"] if learns else []
    if privacy.unit == "sample" and any(map(math.isfinite, questions.values())):  # the client may not have noised them either
        outside.append("answers that did not count")
    if isinstance(privacy, CentralDP):
        # What is inherited does not count: its own `select` may draw in another way.
        sampled = selector.sampling_rate if stated(selector, "sampling_rate") else None
        rates = [sampled(cohort_size, clients.partition.num_clients) if sampled is not None else 1.0]
        statistics = {name: multiplier for name, (_, multiplier) in noised.items()}
        ledger = Accounting(privacy=privacy, questions=questions, outside=tuple(outside), rates=rates, statistics=statistics)
    else:
        ledger = _of_samples(clients, clients.privacy, questions, tuple(outside))
    if ledger.claims and any(rate < 1 for rate in ledger.rates):
        required("opacus", extra="privacy", wanted_by="the epsilon of what is drawn at random, which `privacy` tells")
    return ledger


def with_mechanisms(ledger: Accounting | None, mechanisms: Sequence[Mechanism]) -> Accounting | None:
    """Return the ledger of a run with mechanisms of the user's own, which may see and change what noise is to cover.

    Raises:
        ConfigError: if epsilon is to cover everything.
    """
    if ledger is None or not mechanisms:
        return ledger
    name = type(mechanisms[0]).__name__
    if ledger.privacy.cover == "all" and (ledger.claims or isinstance(ledger.privacy, CentralDP)):
        raise ConfigError(
            f"Expected no mechanism of your own, which may see updates without noise, but got {name}: leave it out, or give "
            "privacy.cover=updates."
        )
    return replace(ledger, outside=(*ledger.outside, f"what the mechanism {name} makes of a round"))


def stated(part: object, name: str) -> Any:
    """Return what a part's class says of itself; ``None`` where it only inherits it."""
    return vars(type(part)).get(name)


def _noised(aggregator: Aggregator) -> Mapping[str, tuple[float, float]]:
    """Return what of the clients' extras the server is to clip and noise, by its norm and noise multiplier."""
    return aggregator.noised() if aggregator.noised is not None and stated(aggregator, "noised") else {}


def _of_samples(
    clients: Clients, privacy: DPSGD | None, questions: Mapping[str, float], outside: tuple[str, ...]
) -> Accounting:
    assert privacy is not None
    sizes = list(map(len, clients.partition.indices))
    return Accounting(
        privacy=privacy,
        questions=questions,
        outside=outside,
        rates=[privacy.sampling_rate(n, clients.local.batch_size) for n in sizes],
        planned=[clients.num_steps(ClientTask(k, 1, 0, Broadcast({}))) for k in range(len(sizes))],
        max_epsilon=privacy.max_epsilon,
    )


def _check_sums(
    clients: Clients, privacy: CentralDP, aggregator: Aggregator, cohort_size: int, names: Mapping[str, Any]
) -> None:
    """Refuse what would go past the noised sum of updates, or past the number that it is divided by."""
    privacy.noise(cohort_size)
    objective = f"objective={names['objective']} or its correction"
    by_means, noised = stated(aggregator, "noised"), _noised(aggregator)
    sends = sorted(getattr(clients.objective, "provides", frozenset()) - OPTIONAL - noised.keys())
    instead = "give `aggregator.max_norm` and `aggregator.noise_multiplier`" if by_means else "choose another"
    statistics = [name for program in clients.programs for name in program.buffers if name not in clients.personal]
    for refused, what in (
        (
            not stated(aggregator, "takes_mean") and not by_means,
            f"aggregator={names['aggregator']} looks at each: choose fedavg, fedavgm or fedadam",
        ),
        (aggregator.weighting != "equal", "`aggregator.weighting` weights them by samples: choose equal"),
        (statistics, f"clients send running statistics, {statistics[0]!r}: choose a model without" if statistics else ""),
        (sends, f"{objective} sends {sends[0]!r}: {instead}" if sends else ""),
        (len(clients.programs) > 1, "clients hold parts of the model: choose capacity=whole submodel=whole"),
    ):
        if refused:
            raise _refusal(names, what)


def _refusal(names: Mapping[str, Any], what: str) -> ConfigError:
    covers = "the noised sum of updates has an influence on for privacy=central, whose epsilon covers that"
    if names.get("privacy") != "central":
        covers = "clients' noised steps have an influence on for `privacy`, whose epsilon covers them"
    return ConfigError(f"Expected models that nothing but {covers} alone, but {what}.")


def check_noised(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse noise on updates where clients send something else besides that goes into the model.

    Raises:
        ConfigError: naming it.
    """
    if not any(isinstance(transform, ClipAndNoise) and transform.noise_multiplier for transform in clients.transforms):
        return
    sent = [name for program in clients.programs for name in program.buffers if name not in clients.personal]
    extras = sorted(getattr(clients.objective, "provides", frozenset()) - OPTIONAL)
    for refused, what in (
        (sent, f"the model's running statistics, {sent[0]!r} the first of them: choose a model without" if sent else ""),
        (extras, f"{extras[0]!r}, by objective={names['objective']} or its correction: choose another" if extras else ""),
    ):
        if refused:
            raise ConfigError(
                "Expected clients that send nothing for the model besides what transforms=clip_and_noise covers, but they send "
                f"{what}, or noise_multiplier=0."
            )


def check_private(clients: Clients, names: Mapping[str, Any]) -> None:
    """Refuse what does not go with gradients that are taken sample by sample, clipped and noised.

    Raises:
        ConfigError: naming it.
    """
    correction, loss = getattr(clients.objective, "correction", None), getattr(clients.objective, "loss", None)
    modules = [module for program in clients.programs for module in program.module.modules()]
    sees_batch = any(isinstance(module, _BatchNorm) or getattr(module, "sees_batch", False) for module in modules)
    for refused, what in (
        (
            type(clients.objective) is not ClassificationObjective,
            f"objective={names['objective']} may use samples in other ways: choose classification",
        ),
        (
            getattr(getattr(loss, "func", loss), "compares_samples", False),
            f"loss={names.get('loss')} compares the samples of a batch: choose cross_entropy",
        ),
        (
            correction is not None and type(correction) is not Correction,
            f"correction={names['correction']} adds a term that is no sample's: choose none",
        ),
        (sees_batch, "the model normalises samples by their batch: choose one with GroupNorm (scaler_cnn, resnet50_gn)"),
        (
            clients.local.max_grad_norm is not None,
            "`local.max_grad_norm` clips gradients of batches: leave it null, and set privacy.max_grad_norm",
        ),
        (clients.compile, "`compile` is set, and compiled models have gradients of batches: leave it false"),
    ):
        if refused:
            raise ConfigError(f"Expected parts that go with privacy=dp_sgd, but {what}.")
    _try_private(clients)


def _try_private(clients: Clients) -> None:
    """Take the gradients of two samples, so that a model is refused now rather than at the first client."""
    assert clients.privacy is not None
    batch = clients.dataset.batch(clients.partition.indices[0][[0, -1]], clients.device, clients.memory_format)
    with rng.forked(0, "private-trial", device=clients.device):
        for program in clients.programs:
            program.train(True)
            try:
                PrivateGradients(program, clients.privacy).clipped_sum(batch)
            except RuntimeError as error:
                raise ConfigError(
                    f"Expected a model whose gradients can be taken sample by sample for privacy=dp_sgd, but torch refuses "
                    f"({complaint(error)}): choose another model, or leave out layers that draw random numbers "
                    "(model.stochastic_depth=0)."
                ) from None

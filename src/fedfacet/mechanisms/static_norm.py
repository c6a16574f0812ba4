"""Static batch norm: statistics of the new model's layers, gathered from clients once their updates are merged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch

from fedfacet.arguments import Declared, Whole
from fedfacet.mechanism import Mechanism, Round
from fedfacet.models.base import NORM_STATISTICS
from fedfacet.records import FederationState
from fedfacet.round import crossed
from fedfacet.types import Broadcast, ClientTask, Facts, Query, State


@dataclass(eq=False, kw_only=True)
class StaticNorm(Declared, Mechanism):
    r"""Gathers the statistics by which layers of static batch norm normalise in evaluation (sBN).

    Clients normalise by their batches while they train, keep no running statistics and send none. After the updates are
    merged, all available clients are sent the whole new model and pass their samples once. The server adds their sums up, and
    each channel c of each layer gets

    .. math:: \mu_c = \frac{1}{M} \sum_k \sum_m x_{kmc}, \qquad
        \sigma_c^2 = \frac{M}{M - 1} \Bigl(\frac{1}{M} \sum_k \sum_m x_{kmc}^2 - \mu_c^2\Bigr)

    with m over the samples and pixels of client k, and M the number of all of them. So clients count by their samples.

    What crosses is in ``comm/query_floats_down`` and ``comm/query_floats_up`` and in ``disclosures.csv``, under ``disclosure``
    and ``privacy``. Simulated ``devices`` take no time for it. Clients whose answers do not count are left out.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264, section 3 (sBN). Compared with the function ``stats`` of the
    authors' code, which gathers after every round.

    Deviations: The code passes all clients' samples as one shuffled data set and takes the mean of batches' means and
    variances. Here batches are of one client, and the variance includes the differences between batches. A model is sent with
    the last statistics, and the ledger counts these. In the code it has none. Parts of a model (``submodel``) normalise by the
    whole model's statistics, so that ``callbacks=submodel_evaluate`` measures them too low.

    Args:
        norm_statistics: what clients are asked for.
        every_n_rounds: how often, 1 or larger; always in the last round, and in every one where ``termination`` may end the
            run.
    """

    option_group = "mechanisms.static_norm."
    rank = 16
    provides = frozenset({NORM_STATISTICS})

    norm_statistics: Query
    every_n_rounds: Annotated[int, Whole()] = 1

    def after(self, round: Round, new: FederationState) -> None:
        """Ask clients, and write what they answer into the new model."""
        federation = round.federation
        last = round.number >= getattr(federation, "rounds", round.number)
        if not (round.number % self.every_n_rounds == 0 or last or federation.may_stop):
            return
        round.lap("measure")
        layers = _layers(new.model, round.facts)
        fresh: dict[str, Any] = {"disclosures": {}, "answers": {}, "asked": {}, "received_model": set(), "came": []}
        queries = replace(
            round.queries,
            order=partial(_order, round, Broadcast(new.model)),
            sizes={**round.queries.sizes, "S": sum(1 + 2 * len(new.model[mean]) for mean, _ in layers)},
            **fresh,
        )
        answers = queries.ask_available(self.norm_statistics)
        for client_id in queries.received_model:
            queries.ledger.query_floats_down += federation.num_floats_sent(Broadcast(new.model), client_id)
        round.metrics |= crossed(queries.ledger)
        federation.state = replace(federation.state, model={**new.model, **gathered(new.model, layers, answers.values())})


def gathered(model: State, layers: Sequence[tuple[str, str]], answers: Iterable[list[float]]) -> State:
    """Return the mean and the variance of each layer by name, without layers of fewer than two values.

    Args:
        model: has a mean of each layer, for its length and dtype.
        layers: names of each layer's mean and variance.
        answers: of clients, as ``NormStatistics`` gives them.
    """
    statistics: State = {}
    if not (rows := list(answers)):
        return statistics
    total = torch.tensor(rows, dtype=torch.float64).sum(dim=0)
    for mean, variance in layers:
        like, length = model[mean], len(model[mean])
        number, first, second = total[0], total[1 : 1 + length], total[1 + length : 1 + 2 * length]
        total = total[1 + 2 * length :]
        if number > 1:
            mu = first / number
            statistics[mean] = mu.to(like)
            statistics[variance] = ((second / number - mu.square()).clamp(min=0) * number / (number - 1)).to(like)
    return statistics


def _layers(model: State, facts: Facts) -> list[tuple[str, str]]:
    """Return the names of the means and variances that clients do not send."""
    means = [name for name in model if name.endswith("running_mean") and name not in facts.buffers]
    return [(name, name.removesuffix("mean") + "var") for name in means]


def _order(round: Round, broadcast: Broadcast, client_id: int) -> ClientTask:
    return ClientTask(client_id, round.number, round.seed, broadcast)

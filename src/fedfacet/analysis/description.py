"""A federation described before any training: how heterogeneous it is, and whom a selector would choose."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.analysis.writers import Table
from fedfacet.arguments import check_whole
from fedfacet.data.dataset import Dataset
from fedfacet.errors import ConfigError
from fedfacet.heterogeneity import InteractionMatrix, class_distances, measure_federation
from fedfacet.metrics.group_names import group_names
from fedfacet.plots.run import MEASURES, TYPES
from fedfacet.records import Ledger, RoundResult
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import Facts, Query, SelectionContext, ServerState


def describe_federation(matrices: Sequence[InteractionMatrix]) -> dict[str, Any]:
    """Return a federation's six measures and, in the order of ids, clients' matrices, triplets and types, as JSON-able data."""
    measured = measure_federation(matrices)
    return {
        "num_clients": len(matrices),
        "global": measured.global_triplet._asdict(),
        "client_mean": measured.client_mean._asdict(),
        "class_distances": class_distances(matrices),
        "clients": [
            {"id": client_id, "counts": matrix.counts.astype(np.int64).tolist(), **triplet._asdict(), "type": matrix.type}
            for client_id, (matrix, triplet) in enumerate(zip(matrices, measured.clients, strict=True))
        ],
    }


def describe_feasibility(
    dataset: Dataset, matrices: Sequence[InteractionMatrix], val: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return per (class, attribute) cell, in the order of groups, what the clients take of a data set and what it has.

    That is ``class`` and ``attribute`` by name, and the numbers of samples ``wanted`` by the clients, ``available`` for
    training, and held out for ``validation`` (at the positions ``val``).
    """

    def counts(positions: NDArray[np.int64]) -> list[int]:
        groups = dataset.y[positions] * dataset.num_attributes + dataset.a[positions]
        return np.bincount(groups, minlength=dataset.num_classes * dataset.num_attributes).tolist()  # type: ignore[no-any-return]

    wanted = np.sum([matrix.counts for matrix in matrices], axis=0).astype(np.int64).ravel().tolist()
    names = product(dataset.class_names, dataset.attribute_names)
    keys = ("class", "attribute", "wanted", "available", "validation")
    numbers = zip(wanted, counts(dataset.train), counts(val), strict=True)
    return [dict(zip(keys, (*name, *number), strict=True)) for name, number in zip(names, numbers, strict=True)]


def simulate_selection(
    selector: ClientSelector, matrices: Sequence[InteractionMatrix], *, rounds: int, cohort_size: int, seed: int
) -> dict[str, Any]:
    """Let a selector choose round after round, without training, and count whom it takes.

    Every client is available; the clients' true matrices answer questions, those after their heterogeneity too. The draws are
    those of a training run of the same seed. Rounds of a selector's ``pretraining_rounds``, if it has such, run but do not
    count.

    ``matrices`` are in the order of the clients' ids. ``rounds`` are 1 or more, ``cohort_size`` is between 1 and the number of
    clients, ``seed`` is 0 or larger.

    Source: FedDiverse (arXiv:2504.11216), appendix F (thesis, section 5.6.4).

    Returns:
        ``share``: per type of client its part of all choices; ``rounds_with_every_client_of_type``: per type the part of the
        rounds in which all of its clients took part, ``None`` where the federation has no such client; ``per_client``: the part
        of the rounds in which each client took part. The type ``"none"`` appears only where there is such a client.

    Raises:
        ConfigError: if the selector asks something that cannot be answered without training, or learns from updates.
        ValueError: if a number is out of range.
    """
    check_whole("simulate.rounds", rounds)
    if not isinstance(cohort_size, int) or not 1 <= cohort_size <= len(matrices):
        raise ValueError(
            f"Expected the simulated `cohort_size` between 1 and the federation's {len(matrices)} clients, but got "
            f"{cohort_size!r}: lower it or choose a partition with more clients."
        )
    check_whole("simulate.seed", seed, least=0)
    server = selector.init(Facts(len(matrices), model={}, parameters=()))
    if selector.needs_updates is not None and selector.needs_updates(server):
        raise ConfigError(
            f"Expected a selector that chooses without training, but {type(selector).__name__} learns from the clients' "
            "updates: simulate another selector, or train with this one."
        )
    chosen_RK = _choices(selector, server, matrices, rounds, cohort_size, seed)
    types = np.array([matrix.type for matrix in matrices])
    present = [kind for kind in TYPES if kind != "none" or kind in types]
    return {
        "share": {kind: float(chosen_RK[:, types == kind].sum() / chosen_RK.sum()) for kind in present},
        "rounds_with_every_client_of_type": {
            kind: float(chosen_RK[:, types == kind].all(axis=1).mean()) if kind in types else None for kind in present
        },
        "per_client": chosen_RK.mean(axis=0).tolist(),
    }


def tables_of(description: Mapping[str, Any]) -> Iterator[Table]:
    """Yield tables that fit into 80 columns.

    ``description`` is what ``describe_federation`` returns, perhaps with ``selection`` (of ``simulate_selection``) or several
    of these by name as ``selections``, and with ``feasibility``; or it has several descriptions by name as ``federations``.
    """
    if "federations" in description:
        yield Table(
            "Class imbalance, attribute imbalance, spurious correlation, from 0 to 1",
            ["partition", "clients", "samples", "all data pooled", "mean of clients"],
            [
                [
                    name,
                    str(described["num_clients"]),
                    str(sum(map(_size, described["clients"]))),
                    *("  ".join(_measures(described[part])) for part in ("global", "client_mean")),
                ]
                for name, described in description["federations"].items()
            ],
        )
        return
    clients = description["clients"]
    pooled, mean = _measures(description["global"]), _measures(description["client_mean"])
    yield Table(
        f"Heterogeneity of {len(clients)} clients with {sum(map(_size, clients))} samples, from 0 to 1",
        ["measure", "all data pooled", "mean of clients"],
        list(zip(MEASURES, pooled, mean, strict=True)),
    )
    yield Table(
        "Distance of clients' class shares from all data's, mean of clients, from 0 to 1",
        ["Jensen-Shannon", "Hellinger", "total variation"],
        [[f"{value:.2f}" for value in description["class_distances"].values()]],
    )
    yield Table(
        "Clients; rows of a matrix are classes, columns attribute values",
        ["ids", "matrix", "samples", "CI", "AI", "SC", "type"],
        [_client_row(list(equal)) for _, equal in groupby(clients, key=itemgetter("counts"))],
    )
    selections = {"": description["selection"]} if "selection" in description else description.get("selections", {})
    sizes = Counter(client["type"] for client in clients)
    for name, selected in selections.items():
        share, whole = selected["share"], selected["rounds_with_every_client_of_type"]
        yield Table(
            f"Simulated selection{name and f' by {name}'} (%)",
            ["type", "clients", "share of selections", "if uniform", "rounds with all of them"],
            [
                [kind, str(sizes[kind]), _percent(share[kind]), _percent(sizes[kind] / len(clients)), _percent(whole[kind])]
                for kind in share
            ],
        )
    if "feasibility" in description:
        cells = description["feasibility"]
        groups = group_names(*(list(dict.fromkeys(cell[part] for cell in cells)) for part in ("class", "attribute")))
        yield Table(
            "Samples of the data set",
            ["group", "wanted by clients", "available", "held out for validation"],
            [
                [name, *(str(cell[key]) for key in ("wanted", "available", "validation"))]
                for name, cell in zip(groups, cells, strict=True)
            ],
        )


def _client_row(equal: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the row of neighbouring clients with the same matrix."""
    first, last = equal[0], equal[-1]
    ids = f"{first['id']}" if first is last else f"{first['id']}-{last['id']}"
    matrix = " / ".join(" ".join(map(str, row)) for row in first["counts"])
    return [ids, matrix, str(_size(first)), *_measures(first), first["type"]]


def _measures(measured: Mapping[str, float]) -> list[str]:
    return [f"{measured[name]:.2f}" for name in ("class_imbalance", "attribute_imbalance", "spurious_correlation")]


def _size(client: Mapping[str, Any]) -> int:
    return sum(map(sum, client["counts"]))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}"


def _choices(
    selector: ClientSelector,
    server: ServerState,
    matrices: Sequence[InteractionMatrix],
    rounds: int,
    cohort_size: int,
    seed: int,
) -> NDArray[np.bool_]:
    """Return who took part in which of the counted rounds, shape (R, K)."""
    pretraining_rounds = getattr(selector, "pretraining_rounds", 0)
    disclosed: dict[str, dict[int, Any]] = {}
    known = [_answers_of(matrix) for matrix in matrices]

    def ask(query: Query, client_ids: Sequence[int]) -> Mapping[int, Any]:
        if query.name not in known[0]:
            raise ConfigError(
                f"Expected {type(selector).__name__} to ask only for what is known without training ({', '.join(known[0])}), "
                f"but it asks for {query.name!r}: simulate another selector, or train with this one."
            )
        answers = {client_id: known[client_id][query.name] for client_id in client_ids}
        disclosed.setdefault(query.name, {}).update(answers)
        return answers

    chosen_RK = np.zeros((rounds, len(matrices)), dtype=bool)
    for round in range(1, pretraining_rounds + rounds + 1):
        context = SelectionContext(
            round=round,
            num_clients=len(matrices),
            cohort_size=cohort_size,
            num_slots=cohort_size,
            available=tuple(range(len(matrices))),
            disclosed=disclosed,
            rng=rng.stream(seed, "selection", round),
            ask=ask,
        )
        cohort = tuple(selector.select(server, context))
        if round > pretraining_rounds:
            chosen_RK[round - pretraining_rounds - 1, list(cohort)] = True
        if selector.remember is not None:
            server = selector.remember(server, cohort)
        if selector.observe is not None:
            receipts: Any = tuple(_Untrained(client_id, type(selector).__name__) for client_id in cohort)
            result = RoundResult(round, cohort, receipts, {}, Ledger(), seconds={}, num_clients=len(matrices))
            server = selector.observe(server, result, [], rng.stream(seed, "selector-learns", round))
    return chosen_RK


class _Untrained:
    """The receipt of a client that has not trained: it has all of a ``ClientReceipt`` but the loss.

    Raises:
        ConfigError: where somebody reads that.
    """

    num_samples = num_steps = 1
    answers: Mapping[str, Any] = {}

    def __init__(self, client_id: int, reader: str) -> None:
        self.client_id, self._reader = client_id, reader

    @property
    def loss_sum(self) -> float:
        raise ConfigError(
            f"Expected a selector that chooses without training, but {self._reader} learns from the clients' losses: simulate "
            "another selector, or train with this one."
        )

    num_seen = loss_sum


def _answers_of(matrix: InteractionMatrix) -> dict[str, Any]:
    """Return by the name of a query what a client with this matrix answers."""
    counts_YA = matrix.counts.astype(np.int64)
    return {
        "heterogeneity": list(matrix.triplet),
        "interaction_matrix": counts_YA.tolist(),
        "label_histogram": counts_YA.sum(axis=1).tolist(),
        "num_samples": int(counts_YA.sum()),
    }

"""What a selector costs, counted by the ledger of a short run on 12 clients."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedfacet.build import build, settle
from fedfacet.config import compose_job, conf_dir
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation

COLUMNS = (
    *("selector", "clients a round", "numbers down", "numbers up", "samples asked", "samples trained"),
    *("server's samples", "disclosed a round", "kept, bytes"),
)

SETTING = (
    "On 12 clients of scikit-learn's digits, 4 a round, Dirichlet 0.3, FedAvg (LAG: its own method), devices=lognormal, "
    "server_data=validation. Means over rounds. Numbers down and up: of questions and answers alone, beyond models and updates "
    "of training. Samples asked: passed through a model to answer; samples trained: passed in training by everybody who "
    "trained. Kept: bytes at the server after the last round, of the selector's state, the aggregator's, and answers."
)

_COMMON = (
    *("experiment=digits_gsc", "partition=dirichlet", "partition.num_clients=12", "partition.alpha=0.3"),
    *("federation.cohort_size=4", "devices=lognormal", "server_data=validation", "server_data.samples_per_cell=5"),
    *("callbacks=[]", "task=describe", "model.width=4", "model.hidden=16"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What selecting costs a round, a mean over rounds.

    Attributes:
        clients: who was selected.
        floats_down: sent to clients to ask them something, beyond training.
        floats_up: of their answers.
        samples_asked: that clients passed through a model to answer.
        samples_trained: that clients passed in training.
        server_samples: that the server passed through models to judge them.
        disclosed: kind of answer -> numbers.
        state_bytes: of the selector's state after the last round.
        aggregator_bytes: of the aggregator's.
        answer_bytes: of the answers that the server remembers.
        milliseconds: at the server, by the clock; another one each time.
    """

    clients: float
    floats_down: float
    floats_up: float
    samples_asked: float
    samples_trained: float
    server_samples: float
    disclosed: dict[str, float]
    state_bytes: int
    aggregator_bytes: int
    answer_bytes: int
    milliseconds: float

    @property
    def cells(self) -> list[str]:
        """A line of the table."""
        disclosed = ", ".join(f"{kind} {number:.4g}" for kind, number in self.disclosed.items()) or "nothing"
        numbers = (self.floats_down, self.floats_up, self.samples_asked, self.samples_trained, self.server_samples)
        kept = self.state_bytes + self.aggregator_bytes + self.answer_bytes
        return [f"{self.clients:.3g}", *(f"{number:,.0f}" for number in numbers), disclosed, f"{kept:,}"]

    def as_dict(self) -> dict[str, Any]:
        """Return what the ledger says, without the clock's time, as JSON-able data."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "milliseconds"}


def measure(selector: str, rounds: int) -> Cost:
    """Run a selector for some rounds, without writing anything, and count.

    Args:
        selector: an option of ``conf/selector``.
        rounds: 1 or larger.

    Raises:
        ConfigError: if it does not go with what the others are measured on.
    """
    try:
        federation = _federation(f"selector={selector}", "aggregator=fedavg")
    except ConfigError:
        file = conf_dir() / "method" / f"{selector}.yaml"
        if not file.is_file() or f"/selector: {selector}\n" not in file.read_text(encoding="utf-8"):
            raise
        federation = _federation(f"method={selector}")  # half a method, which FedAvg does not complete
    results = []
    try:
        for _ in range(rounds):
            results.append(federation.run_round())
    finally:
        federation.engine.close()
    disclosed: Counter[str] = Counter()
    for result in results:
        for answer in result.disclosed:
            disclosed[answer.kind] += answer.floats_up
    ledgers = [result.ledger for result in results]
    return Cost(
        clients=_mean(len(result.cohort) for result in results),
        floats_down=_mean(ledger.query_floats_down for ledger in ledgers),
        floats_up=_mean(ledger.query_floats_up for ledger in ledgers),
        samples_asked=_mean(ledger.query_samples for ledger in ledgers),
        samples_trained=_mean(sum(receipt.num_seen for receipt in result.receipts) for result in results),
        server_samples=_mean(result.metrics.get("server/samples", 0) for result in results),
        disclosed={kind: number / rounds for kind, number in sorted(disclosed.items())},
        state_bytes=_bytes_of(federation.state.selector),
        aggregator_bytes=_bytes_of(federation.state.aggregator),
        answer_bytes=_bytes_of(federation.state.disclosures),
        milliseconds=1000 * _mean(result.seconds["select"] for result in results),
    )


def _federation(*overrides: str) -> Federation:
    config, _ = compose_job("train", [*_COMMON, *overrides])
    config.logger = {}
    settle(config)
    return build(config, Path())


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _bytes_of(value: Any) -> int:
    """Count tensors by their entries, text by its characters and other plain data by eight bytes an entry."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(_bytes_of(entry) for entry in value.values())
    if isinstance(value, list | tuple | set):
        return sum(map(_bytes_of, value))
    return len(value) if isinstance(value, str) else 8

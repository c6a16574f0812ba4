"""What a run has spent of its clients' privacy, and what it may say of it."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedfacet.errors import ConfigError, DisclosureError
from fedfacet.metrics.proven_epsilon import Mechanism, bound, composed_epsilon
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.disclosure import KINDS
from fedfacet.records import Disclosed, FederationState
from fedfacet.types import ClientTask, Query, ServerState

ADJACENCY = {
    "client": "neighbours differ by the data of one client, which count, or for which zeros stand in updates and answers",
    "sample": "neighbours differ by one sample of one client, which counts, or has gradient 0 and no class; sizes are public",
}
"""Unit -> what differs."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """The one ledger of updates, local steps and answers to questions.

    With clients as units every round counts, and every question as often as any client has answered it. With samples as units
    every client has an account of its own, of the local steps that were planned for it and of its own answers.

    Args:
        privacy: what makes models private.
        questions: name of a question whose answers epsilon counts -> their noise multiplier.
        outside: what epsilon does not count, in words.
        rates: with what probability a unit is in a step: one for all, or one per client where units are samples.
        planned: per client how many steps it takes in a round that it finishes; only where units are samples.
        statistics: name of what the server releases a noised sum of, beside that of the updates -> its noise multiplier.
        max_epsilon: a client takes no part in a round after which its epsilon would be larger; ``None`` for no limit.
    """

    privacy: Privacy
    questions: Mapping[str, float]
    outside: tuple[str, ...]
    rates: Sequence[float]
    planned: Sequence[int] = ()
    statistics: Mapping[str, float] = field(default_factory=dict)
    max_epsilon: float | None = None

    @property
    def claims(self) -> bool:
        """Whether the run has an epsilon."""
        return self.privacy.claims

    @property
    def by_client(self) -> bool:
        """Whether every client has an epsilon of its own."""
        return self.privacy.unit == "sample"

    def init(self) -> ServerState:
        """Return the state before the first round."""
        state = self.privacy.init()
        if self.claims and any(map(math.isfinite, self.questions.values())):
            state["times"] = {}  # question -> how often any client has answered it, at most
        if self.claims and self.by_client:
            state["steps"] = torch.zeros(len(self.planned), dtype=torch.int64)
        return state

    def check(self, query: Query) -> None:
        """Refuse a question whose answers epsilon does not count, when it is put.

        Raises:
            DisclosureError: naming it.
        """
        if self.claims and self.privacy.cover == "all" and self.counted(query) is None:
            raise DisclosureError(
                f"Expected questions whose answers epsilon counts, but `{query.name}` is none: {remedy(query.name)}."
            )

    def counted(self, query: Query) -> float | None:
        """Return the noise multiplier of an answer; ``None`` where epsilon does not count it."""
        multiplier = self.questions.get(query.name)
        return multiplier if multiplier is not None and multiplier == query.counted(self.privacy.unit) else None

    def after(self, before: FederationState, tasks: Iterable[ClientTask], disclosed: Iterable[Disclosed]) -> ServerState:
        """Return the state after a round.

        Args:
            before: the federation's state before it.
            tasks: of those who train, whether or not their updates count.
            disclosed: who answered what in the round.
        """
        state = dict(before.slot("privacy"))
        if "times" in state:
            state["times"] = dict(state["times"])
            for name, times in self._most(disclosed).items():
                again = any(one.client_id in before.disclosures.get(name, {}) for one in disclosed if one.query == name)
                known = state["times"].get(name, 0)
                state["times"][name] = known + times if again else max(known, times)
        if "steps" in state:
            state["steps"] = state["steps"].clone()
            for task in tasks:
                steps = max(1, math.ceil(task.step_fraction * self.planned[task.client_id]))
                state["steps"][task.client_id] += steps
        return state

    def epsilons(self, state: FederationState, accountant: str | None = None) -> list[float]:
        """Return the epsilon after a round: one, or one per client where units are samples."""
        assert self.privacy.delta is not None
        accountant = accountant or self.privacy.accountant
        return [composed_epsilon(spent, self.privacy.delta, accountant) for spent in self._spent(state)]

    def metrics(self, before: FederationState, state: FederationState, *, due: bool) -> dict[str, float]:
        """Return the epsilon after a round, of clients with different ones the largest, and the norm that updates were cut to.

        It is NaN in a round in which nothing is measured where it takes long to find, as with ``accountant=prv`` and for many
        clients.
        """
        clipped = {"privacy/clip_norm": before.slot("privacy")["clip_norm"]} if "clip_norm" in before.slot("privacy") else {}
        if not self.claims:
            return clipped
        takes_long = self.by_client or (self.privacy.accountant == "prv" and self.rates[0] < 1)
        return {"privacy/epsilon": math.nan if takes_long and not due else self._largest(state)[0], **clipped}

    def _largest(self, state: FederationState) -> tuple[float, str]:
        """Return the largest epsilon after a round, and which accountant gave it.

        Those of Rényi divergences, which are quick to find and no smaller, come first: most clients need no other.
        """
        assert self.privacy.delta is not None
        spent, delta, accountant = self._spent(state), self.privacy.delta, self.privacy.accountant
        largest = 0.0, "exact"
        for at_most, one in sorted(((composed_epsilon(one, delta, "rdp"), one) for one in spent), reverse=True):
            if at_most < largest[0]:
                break
            largest = max(largest, bound(one, delta, accountant))
        return largest

    def admitted(self, state: FederationState, client_ids: Sequence[int]) -> tuple[int, ...]:
        """Return who may take part in the round after a state and stay below the limit."""
        if self.max_epsilon is None:
            return tuple(client_ids)
        assert self.privacy.delta is not None
        steps = state.slot("privacy")["steps"].tolist()
        times = state.slot("privacy").get("times", {})
        asked = [  # a question that was never repeated is taken to be put once in a run
            Mechanism(z, 1.0, times[name] + 1 if times.get(name, 0) > 1 else 1)
            for name, z in self.questions.items()
            if math.isfinite(z)
        ]
        admitted = []
        for k in client_ids:
            then = [Mechanism(self.privacy.noise_multiplier, self.rates[k], steps[k] + self.planned[k]), *asked]
            within = any(  # the second only where the first, which takes less time and is no smaller, does not say so
                composed_epsilon(then, self.privacy.delta, accountant) <= self.max_epsilon
                for accountant in dict.fromkeys(("rdp", self.privacy.accountant))
            )
            admitted += [k] if within else []
        return tuple(admitted)

    def stopping(self, before: FederationState, state: FederationState) -> list[int]:
        """Return who takes no part from the next round on, and did before."""
        everybody = range(len(self.planned))
        if self.max_epsilon is None:
            return []
        were = everybody if not before.round else self.admitted(before, everybody)
        return sorted({*were} - {*self.admitted(state, everybody)})

    def table(self, state: FederationState) -> list[dict[str, Any]]:
        """Return a row per client of ``privacy.csv``; none where all have one epsilon, or none."""
        if not (self.claims and self.by_client):
            return []
        steps, epsilons = state.slot("privacy")["steps"].tolist(), self.epsilons(state)
        return [
            {"client": k, "steps": steps[k], "sampling_rate": self.rates[k], "epsilon": epsilon}
            for k, epsilon in enumerate(epsilons)
        ]

    def summary(self, state: FederationState) -> dict[str, Any]:
        """Return what a run's summary says of privacy, a sentence for a paper among it."""
        if not self.claims:
            return {"epsilon": None, "says": "Nothing is proven: there is no noise, or no delta."}
        epsilons, unit, delta = self.epsilons(state), self.privacy.unit, self.privacy.delta
        largest, accountant = max(epsilons), self._accountant(state)
        outside = [*self.outside, *self._unforeseen(state)]
        many = {"epsilon_median": statistics.median(epsilons)} if self.by_client else {}
        return {
            "epsilon": largest,
            **many,
            "delta": delta,
            "unit": unit,
            "adjacency": ADJACENCY[unit],
            "covers": [
                "models",
                *(f"the noised mean of `{name}`" for name in self.statistics),
                *(f"answers to `{name}`" for name in self.questions if name in state.disclosures),
            ],
            "outside": outside,
            "accountant": accountant,
            "noise_key": "secret" if self.privacy.is_secret else "simulation",
            "says": self._sentence(largest, many.get("epsilon_median"), state, outside),
        }

    def _sentence(self, largest: float, median: float | None, state: FederationState, outside: Sequence[str]) -> str:
        answers = [f"`{name}`" for name in self.questions if name in state.disclosures]
        covered = "the server's models" if not self.by_client else "every client's models"
        covered += "".join(f" and the noised mean of `{name}`" for name in self.statistics)
        covered += f" and the noised answers to {', '.join(answers)}" if answers else ""
        over = f" for the client with the largest epsilon (median {median:.4g})" if median is not None else ""
        key = "noise and sampling follow from a secret key"
        if not self.privacy.is_secret:
            key = "noise follows from the run's seed, so this is the epsilon of a simulation and no guarantee"
        return (
            f"({largest:.4g}, {self.privacy.delta:g})-differential privacy{over} after {state.round} rounds: "
            f"{ADJACENCY[self.privacy.unit]}; covered are {covered}; outside are {', '.join(outside)}; accountant: "
            f"{self._accountant(state)}; {key}."
        )

    def _accountant(self, state: FederationState) -> str:
        """Return who has found the largest epsilon."""
        if all(rate == 1 for rate in self.rates):
            return "exact (Balle and Wang, 2018)"
        if self.privacy.accountant == "rdp":
            return "Rényi divergences (Opacus)"
        if self._largest(state)[1] == "rdp":
            return "Rényi divergences (Opacus), as PRV has no finite bound here"
        return "privacy loss random variables, PRV (Opacus)"

    def _unforeseen(self, state: FederationState) -> list[str]:
        """Return in words which questions were put that epsilon does not count and nobody foresaw."""
        known = " ".join(self.outside)
        asked = [name for name in state.disclosures if name not in self.questions]
        return [f"answers to `{name}`" for name in asked if f"`{name}`" not in known]

    def _spent(self, state: FederationState) -> list[list[Mechanism]]:
        z, times = self._of_round(), state.slot("privacy").get("times", {})
        answered = {name: Mechanism(self.questions[name], 1.0, number) for name, number in times.items()}
        if not self.by_client:
            return [[Mechanism(z, self.rates[0], state.round), *answered.values()]]
        return [
            [
                Mechanism(z, self.rates[k], steps),
                *(answer for name, answer in answered.items() if k in state.disclosures.get(name, {})),
            ]
            for k, steps in enumerate(state.slot("privacy")["steps"].tolist())
        ]

    def _of_round(self) -> float:
        """Return the noise multiplier of a round's sums together: one Gaussian mechanism, as they are of the same cohort."""
        if not self.statistics:
            return self.privacy.noise_multiplier
        multipliers = [self.privacy.noise_multiplier, *self.statistics.values()]
        return 1 / math.hypot(*(1 / z for z in multipliers)) if all(multipliers) else 0.0

    def _most(self, disclosed: Iterable[Disclosed]) -> dict[str, int]:
        """Return how often any client has answered each question that costs, in one round."""
        counts = Counter((one.query, one.client_id) for one in disclosed)
        most: dict[str, int] = {}
        for (name, _), number in counts.items():
            if math.isfinite(self.questions.get(name, math.inf)):
                most[name] = max(most.get(name, 0), number)
        return most


def remedy(name: str) -> str:
    """Return what to do about a question that epsilon does not count."""
    return (
        f"give `{name}.noise_multiplier` (and `max_norm` where clients are to be hidden) if it has one, choose poisson, or "
        "uniform, or privacy.cover=updates, with which the summary says what is outside"
    )


def in_words(query: Query) -> str:
    """Return what a question's answers tell."""
    return f"answers to `{query.name}` ({KINDS.get(query.kind, 'whatever they tell')})"


def check_room(accounting: Accounting, first: FederationState) -> None:
    """Refuse a limit under which nobody takes part in a single round.

    Raises:
        ConfigError: saying so.
    """
    if not accounting.admitted(first, range(len(accounting.planned))) and accounting.max_epsilon is not None:
        raise ConfigError(
            f"Expected a `privacy.max_epsilon` that some client stays below in a round, but {accounting.max_epsilon:g} is too "
            "little for all: raise it, or privacy.noise_multiplier, or take fewer steps or smaller batches."
        )

"""What a selector makes of a round that is over: its metrics, and what it learns."""

import inspect
from dataclasses import dataclass
from typing import Any

from fedfacet import rng, state
from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.round import result_of
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import Facts, ServerState


@dataclass(frozen=True, eq=False)
class SelectorMetrics(Mechanism):
    """Measures what the round came to by the selector, which has not learnt from it yet."""

    selector: ClientSelector

    rank = 35

    def after(self, round: Round, new: FederationState) -> None:
        """Measure ``selector/*``."""
        assert self.selector.metrics is not None
        measured = self.selector.metrics(new.selector, result_of(round))
        round.metrics |= {f"selector/{name}": value for name, value in measured.items()}


@dataclass(frozen=True, eq=False)
class SelectorLearning(Mechanism):
    """Lets a selector learn from the round, once the new model is measured."""

    selector: ClientSelector
    facts: Facts

    slot = "selector"
    rank = 5

    def init(self) -> ServerState:
        """Return what the selector knows before the first round."""
        return self.selector.init(self.facts)

    def plan(self, round: Round) -> None:
        """Keep the round's updates if the selector wants to see them."""
        needs_updates = self.selector.needs_updates
        round.keeps_updates |= needs_updates is not None and needs_updates(round.before.selector)

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Return what the selector knows now."""
        round.lap("measure")
        if self.selector.observe is None:
            assert self.selector.remember is not None
            known = self.selector.remember(round.before.selector, round.cohort)
            round.lap("select")
            return known
        arguments: dict[str, Any] = {}
        result = result_of(round)
        if round.evaluator is not None and self.selector.judges is not None and (what := self.selector.judges()):
            arguments["judge"] = round.evaluator.of(what)
        takes = inspect.signature(self.selector.observe).parameters
        if "change" in takes or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
            sent = (*self.facts.parameters, *self.facts.buffers)
            arguments["change"] = state.subtract({name: new.model[name] for name in sent}, round.before.model)
        draw = rng.stream(round.seed, "selector-learns", round.number)
        learnt = self.selector.observe(round.before.selector, result, round.updates, draw, **arguments)
        round.lap("select")
        return learnt


def of_selector(selector: ClientSelector, facts: Facts) -> list[Mechanism]:
    """Return the mechanisms of what a selector does beside selecting."""
    made: list[Mechanism] = [SelectorMetrics(selector)] if selector.metrics is not None else []
    return [*made, SelectorLearning(selector, facts)] if selector.observe or selector.remember else made

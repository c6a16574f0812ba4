"""A federation: a server, its clients behind an engine, and the rounds between them. A round itself is in ``round.py``."""

from collections.abc import Iterable
from contextlib import ExitStack

import torch

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import check_whole
from fedfacet.engines.base import Engine
from fedfacet.errors import Interrupted
from fedfacet.mechanism import Mechanism, hooks
from fedfacet.mechanisms.preparation import Preparation
from fedfacet.mechanisms.selection import of_selector
from fedfacet.mechanisms.termination import EndOfRun
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.records import FederationState
from fedfacet.round import run_round
from fedfacet.selectors.base import ClientSelector
from fedfacet.server import Server
from fedfacet.storage.fitting import check_fits
from fedfacet.types import Facts


class Federation(Server):
    """A server, its clients behind an engine, and the rounds between them.

    Args:
        facts: the initial model, the number of clients, and what these send.
        engine: runs the clients; already set up.
        selector: says who takes part.
        aggregator: makes the next model.
        mechanisms: what else takes part in a round, in any order; see ``fedfacet.mechanism``.
        rounds: how many rounds to run, 1 or larger.
        cohort_size: how many clients a round asks for by default, between 1 and the number of clients.
        seed: of initial weights, selection and local training; 0 or larger.

    Raises:
        ValueError: if a number is out of range, or if two mechanisms have the same slot of the state.
    """

    def __init__(
        self,
        *,
        facts: Facts,
        engine: Engine,
        selector: ClientSelector,
        aggregator: Aggregator,
        mechanisms: Iterable[Mechanism] = (),
        rounds: int,
        cohort_size: int,
        seed: int,
    ) -> None:
        check_whole("federation.rounds", rounds)
        if not isinstance(cohort_size, int) or not 1 <= cohort_size <= facts.num_clients:
            raise ValueError(
                f"Expected `federation.cohort_size` between 1 and the federation's {facts.num_clients} clients, but got "
                f"{cohort_size!r}: lower it or choose a partition with more clients."
            )
        check_whole("seed", seed, 0)
        given = [*mechanisms, *selector.mechanisms(), *of_selector(selector, facts)]
        if aggregator.report is not None or aggregator.prepare is not None:
            given.append(Preparation())
        if not any(isinstance(one, UpdateCheck) for one in given):
            given.append(UpdateCheck())
        if hooks(given, "stop"):
            given.append(EndOfRun())
        super().__init__(facts, engine, selector, aggregator, given, cohort_size, seed)
        self.rounds = rounds
        self.state = self._first_state()

    def __repr__(self) -> str:
        """Return one line with counts."""
        return f"Federation({self.num_clients} clients, {self.cohort_size} a round, {self.state.round} of {self.rounds} rounds)"

    run_round = run_round

    def _first_state(self) -> FederationState:
        """Return the state before the first round."""
        first = FederationState(
            round=0,
            model=state.clone(self.facts.model),
            memory={},
            disclosures={},
            participation_counts=torch.zeros(self.num_clients, dtype=torch.int64),
            selector=self.selector.init(self.facts),
            aggregator=self.aggregator.init(self.facts),
            callbacks={},
            partition_digest=self.facts.partition_digest,
            data_digest=self.facts.data_digest,
            frozen_digest=self.facts.frozen_digest,
        )
        for one in self.mechanisms:
            first = first.with_slot(one.slot, one.init()) if one.slot else first
        return first

    def restore(self, saved: FederationState) -> None:
        """Go back to a saved state; the next round is ``saved.round + 1``.

        Raises:
            CheckpointError: if the state belongs to another data set or partition, or to other parts.
        """
        check_fits(saved, self._first_state())
        for mechanism in self.mechanisms:
            mechanism.check(saved.slot(mechanism.slot))
            mechanism.restore(saved, failing=False)
        self.state = saved

    def fit(self) -> FederationState:
        """Run the rounds that are left, and return the final state.

        Raises:
            Interrupted: after ``stop``.
        """
        status = "failed"
        try:
            for start in hooks(self.mechanisms, "start"):
                start(self)
            while self.state.round < self.rounds and not self.state.stopped:
                self.check_stop()
                self.run_round()
            status = "finished"
        except Interrupted:
            status = "interrupted"
            raise
        finally:
            with ExitStack() as ending:  # each of them, even if another fails
                ending.callback(self.engine.close)
                for end in hooks(self.mechanisms[::-1], "end"):
                    ending.callback(end, self, status)
        return self.state

"""Clients that are away, drop out, or finish only a part of their work."""

from dataclasses import dataclass
from functools import partial

from fedfacet import rng
from fedfacet.mechanism import Mechanism, Round
from fedfacet.participation import Participation, available_of, log_weights_of, outcome_of


@dataclass(frozen=True, eq=False)
class ClientParticipation(Mechanism):
    """Asks a participation who could take part in a round, and how it ends for each of the cohort."""

    participation: Participation

    rank = 20

    def available(self, round: Round) -> None:
        """Draw who is able to take part, and what weighs their chances."""
        num_clients = round.facts.num_clients
        draw = rng.stream(round.seed, "available", round.number)
        round.available = available_of(self.participation, num_clients, draw)
        if self.participation.gives_weights:
            draw = rng.stream(round.seed, "participation-weights", round.number)
            round.log_weights = log_weights_of(self.participation, num_clients, draw)

    def plan(self, round: Round) -> None:
        """Draw which part of its steps each client of the cohort finishes."""
        draws = {k: partial(rng.stream, round.seed, "outcome", round.number, k) for k in round.cohort}
        round.finished = {k: outcome_of(self.participation, k, draw) for k, draw in draws.items()}

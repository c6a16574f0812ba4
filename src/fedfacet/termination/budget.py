"""A run that ends when its money is spent."""

from fedfacet.arguments import check_within
from fedfacet.termination.base import Termination
from fedfacet.types import PAYMENTS, RoundResult, ServerState


class BudgetTermination(Termination):
    """End a run with the round in which the payments to clients come to ``payments`` or more.

    Payments are ``selector/spent`` of ``metrics.csv``, added up over the rounds. The last round is paid in full, so that a run
    may cost up to a round more than the budget. A run whose selector pays nobody is refused.

    Source: thesis, table 4, "limited reward".

    Args:
        payments: larger than 0, in the unit of the selector's payments.
    """

    needs = frozenset({PAYMENTS})

    def __init__(self, *, payments: float = 100.0) -> None:
        check_within("termination.payments", payments, "(0, 1e300]")
        self.payments = payments

    def init(self) -> ServerState:
        """Return what has been paid so far."""
        return {"spent": 0.0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Add the round's payments."""
        spent = server["spent"] + result.metrics["selector/spent"]
        reason = f"{spent:.4g} has been paid to clients, {self.payments:g} was the budget"
        return {"spent": spent}, reason if spent >= self.payments else None

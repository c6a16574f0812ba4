import pytest

from fedfacet import rng
from fedfacet.records import ClientReceipt, Ledger, RoundResult
from fedfacet.types import Facts, SelectionContext


def result_of(round, cohort, num_clients):
    """Return what a round leaves behind in which everybody's update arrived."""
    receipts = tuple(ClientReceipt(client_id, 10, 1, 1.0, 10) for client_id in cohort)
    return RoundResult(round, tuple(cohort), receipts, {}, Ledger(), {}, num_clients)


class Server:
    """Runs a selector as a federation does, with clients that answer a question by their triplet; notes who is asked.

    The selector's state is ``state``. Where ``answers`` has a question's name, its entries are what the clients answer to that.
    """

    def __init__(self, selector, num_clients, cohort_size, *, triplets=None, answers=None, seed=0):
        self.selector = selector
        self.num_clients = num_clients
        self.cohort_size = cohort_size
        self.triplets = triplets
        self.answers = answers or {}
        self.seed = seed
        self.state = selector.init(Facts(num_clients, {}, ()))
        self.disclosed = {}
        self.asked = []  # (round, clients) of every question

    def context(self, round, available=None):
        def ask(query, client_ids):
            self.asked.append((round, list(client_ids)))
            if query.name in self.answers:
                answers = {client_id: self.answers[query.name][client_id] for client_id in client_ids}
            else:
                answers = {client_id: list(self.triplets[client_id]) for client_id in client_ids}
            self.disclosed.setdefault(query.name, {}).update(answers)
            return answers

        available = tuple(range(self.num_clients) if available is None else available)
        return SelectionContext(
            round=round,
            num_clients=self.num_clients,
            cohort_size=self.cohort_size,
            num_slots=min(self.cohort_size, len(available)),
            available=available,
            disclosed=self.disclosed,
            rng=rng.stream(self.seed, "selection", round),
            ask=ask,
        )

    def select(self, round, available=None):
        """Return the cohort of a round that is not run."""
        return self.selector.select(self.state, self.context(round, available))

    def observe(self, round, cohort, updates=()):
        """Have the selector learn from a round."""
        if self.selector.remember is not None:
            self.state = self.selector.remember(self.state, cohort)
        if self.selector.observe is not None:
            result, draw = result_of(round, cohort, self.num_clients), rng.stream(self.seed, "selector-learns", round)
            self.state = self.selector.observe(self.state, result, list(updates), draw)

    def round(self, round, available=None):
        cohort = tuple(self.select(round, available))
        self.observe(round, cohort)
        return cohort


@pytest.fixture(scope="session")
def server():
    return Server

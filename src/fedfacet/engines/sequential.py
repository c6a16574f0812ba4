"""The reference engine: one client after another, in this process."""

from collections.abc import Iterable, Iterator

from fedfacet.engines.base import Engine
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query


class SequentialEngine(Engine):
    """Run the clients one after another.

    Args:
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    def __init__(self, *, device: str = "auto") -> None:
        self.device = device

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        return (self.clients.train(task) for task in tasks)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer."""
        return (self.clients.answer(query, task) for task in tasks)

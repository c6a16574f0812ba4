"""The seam between the server and the carrier of its messages: five methods, and nothing of learning."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable


class Ticket(NamedTuple):
    """A message that was sent to a site, by a number that the transport gives."""

    site: str
    number: int


class Fault(NamedTuple):
    """What came in the place of an answer: why the site did not get a message, or died over it."""

    sentence: str


@runtime_checkable
class Transport(Protocol):
    """Carries messages to sites and answers back; a site answers them one by one, in the order in which they were sent."""

    def sites(self) -> Mapping[str, bool]:
        """Return the sites by name, and whether a message would reach each of them now."""

    def send(self, site: str, message: bytes) -> Ticket:
        """Send a message, and return at once."""

    def poll(self, seconds: float) -> list[tuple[Ticket, bytes | Fault]]:
        """Return what has come; wait for so long if nothing has."""

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Say that nobody waits for some answers any more; those that come all the same may be returned."""

    def close(self) -> None:
        """Let go of the sites; a second call does nothing."""

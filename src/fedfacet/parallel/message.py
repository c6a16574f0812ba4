"""What one process of a run sends another."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedfacet.types import State


class Message(NamedTuple):
    """What one process sends another: a body that can be pickled, and tensors on the CPU, which travel as one run of bytes."""

    body: Any
    bundles: Sequence[State] = ()

    @classmethod
    def joined(cls, messages: Sequence["Message"]) -> "Message":
        """Return several messages as one, whose body is ``Joined``."""
        parts = [(message.body, len(message.bundles)) for message in messages]
        return cls(Joined(parts), [bundle for message in messages for bundle in message.bundles])

    def parted(self) -> list["Message"]:
        """Return the messages that one was joined of."""
        bundles = iter(self.bundles)
        return [Message(body, list(itertools.islice(bundles, number))) for body, number in self.body.parts]


class Joined(NamedTuple):
    """The body of several messages in one: each body, and how many of the bundles are its own."""

    parts: Sequence[tuple[Any, int]]

"""Who is in the federation: a client's position in the roster is its number for ever."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfacet.deploy.files import made, table_of
from fedfacet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Member:
    """A client: its name, and the site that holds its data."""

    name: str
    site: str


@dataclass(frozen=True, slots=True)
class ClientRegistry:
    """The clients of a federation, in the order of their numbers; between runs it is appended to only."""

    clients: Sequence[Member]

    @classmethod
    def read(cls, file: Path) -> "ClientRegistry":
        """Return the roster of a yaml file.

        Raises:
            ConfigError: if it is none, or a name stands there twice.
        """
        listed = table_of(file).get("clients")
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"Expected `clients` in {file}, a list of {{name: ..., site: ...}}, but got none: write it.")
        registry = cls(tuple(made(Member, entry, f"{file}, client {number}") for number, entry in enumerate(listed)))
        names = [member.name for member in registry.clients]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"Expected every client in {file} once, but {twice[0]} is there twice: rename one.")
        return registry

    @property
    def plain(self) -> list[list[str]]:
        """Name and site of every client, as JSON."""
        return [[member.name, member.site] for member in self.clients]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites, in the order of their first clients."""
        return tuple(dict.fromkeys(member.site for member in self.clients))

    def at(self, site: str) -> dict[str, int]:
        """Return the clients of a site by name, with their numbers."""
        return {member.name: number for number, member in enumerate(self.clients) if member.site == site}

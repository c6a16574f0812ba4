"""The reputation of each client, as a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.records import RoundResult
from fedfacet.storage.table import table_of_clients


class Reputation(Callback):
    """A row in ``reputation.csv`` per client that was selected in a round: round, client, and its reputation afterwards.

    ``summary.json`` has the reputations of all clients at the end. They are those that the selector keeps in its state, as
    ``selector=cbim`` does; another selector is refused. The run's numbers stay what they are.

    Args:
        run_dir: where the table goes.
        client_names: by number; may be empty.
    """

    def __init__(self, *, run_dir: Path, client_names: Sequence[str] = ()) -> None:
        self.table = table_of_clients(run_dir / "reputation.csv", client_names)

    def on_fit_start(self, federation: Federation) -> None:
        """Cut back what a killed run wrote after its last checkpoint.

        Raises:
            ConfigError: if the selector keeps no reputations.
        """
        if "reputation" not in federation.state.selector:
            name = type(federation.selector).__name__
            raise ConfigError(
                f"Expected a selector that keeps reputations for callbacks.reputation, but {name} does not: choose "
                "selector=cbim, or leave the callback out."
            )
        self.table.cut_back(federation.state.round)

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Append a row per member of the cohort."""
        reputation_K = federation.state.selector["reputation"].tolist()
        self.table.append(*({"round": result.round, "client": k, "reputation": reputation_K[k]} for k in sorted(result.cohort)))

    def summarize(self, federation: Federation) -> Mapping[str, Any]:
        """Return everybody's reputation."""
        return {"reputation": federation.state.selector["reputation"].tolist()}

    def state_dict(self) -> dict[str, Any]:
        """Return by what the file is known."""
        return self.table.record()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a file that is not the run's; see ``Table.take_up``."""
        self.table.take_up(state_dict)

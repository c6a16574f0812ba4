"""What clients told the server, as a file."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.federation import Federation
from fedfacet.mechanisms.disclosure import DisclosureControl
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.privacy.disclosure import UNDECLARED
from fedfacet.records import Disclosed, RoundResult
from fedfacet.storage.run_files import each_row_of
from fedfacet.storage.table import table_of_clients


class Disclosures(Callback):
    """A row for all that leaves a client beside its update: round, client, query, kind, floats, epsilon of the noise on them.

    Rows are the answers to queries, and what a method sends along with updates: its ``query`` is then the name of what is sent.
    So a round's floats here are ``comm/query_floats_up``, and ``comm/floats_up`` less the updates themselves. What every update
    has (numbers of samples and steps, the training loss) has no row.

    A run that claims an epsilon by ``privacy`` adds the noise multiplier by which that counts the answer; infinity is of what
    tells nothing. A run whose clients send nothing but updates has no such file. ``summary.json`` says under ``disclosure``
    which policy held, what kinds the server has of how many clients, and the most floats that any client gave.
    """

    def __init__(self, *, run_dir: Path, client_names: Sequence[str] = ()) -> None:
        self.table = table_of_clients(run_dir / "disclosures.csv", client_names)

    def on_fit_start(self, federation: Federation) -> None:
        """Cut back what a killed run wrote after its last checkpoint."""
        self.table.cut_back(federation.state.round)

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Append a row per answer, and per thing that came along with an update."""
        private = federation.find(DifferentialPrivacy)
        counts = private is not None and private.accounting.claims
        kinds, along = federation.facts.kinds_sent, _sent_along(federation)
        sent = [
            Disclosed(receipt.client_id, name, kinds.get(name, UNDECLARED), floats, None)
            for receipt in result.receipts
            for name, floats in along.items()
        ]
        self.table.append(
            *(
                {
                    "round": result.round,
                    "client": answer.client_id,
                    "query": answer.query,
                    "kind": answer.kind,
                    "floats": answer.floats_up,
                    "epsilon": "" if answer.epsilon is None else answer.epsilon,
                    **({"noise_multiplier": "" if answer.counted is None else answer.counted} if counts else {}),
                }
                for answer in (*result.disclosed, *sent)
            )
        )

    def summarize(self, federation: Federation) -> Mapping[str, Any]:
        """Return what the server has learnt, and under which policy."""
        control = federation.find(DisclosureControl)
        policy = control.policy if control is not None else None
        learnt: defaultdict[str, set[str]] = defaultdict(set)
        floats: Counter[str] = Counter()
        for row in each_row_of(self.table.file) if self.table.file.exists() else ():  # there may be millions
            learnt[row["kind"]].add(row["client"])
            floats[row["client"]] += int(row["floats"])
        return {
            "disclosure": {
                "policy": None if policy is None else {"allows": list(policy.allows), "attributes": policy.attributes},
                "clients_by_kind": {kind: len(clients) for kind, clients in sorted(learnt.items())},
                "most_floats_of_a_client": max(floats.values(), default=0),
            }
        }

    def state_dict(self) -> dict[str, Any]:
        """Return by what the file is known."""
        return self.table.record()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a file that is not the run's; see ``Table.take_up``."""
        self.table.take_up(state_dict)


def _sent_along(federation: Federation) -> dict[str, int]:
    """Return how many numbers come along with each update, by name; several tensors may go by one name and a slash."""
    floats: Counter[str] = Counter()
    for name, tensor in federation.extras.items():
        known = (known for known in federation.facts.kinds_sent if name.startswith(f"{known}/"))
        floats[next(known, name)] += tensor.numel()
    return dict(floats)

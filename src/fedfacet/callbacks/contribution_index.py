"""What each client has contributed to the global model, by Shapley values of every round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.arguments import check_within
from fedfacet.callbacks.base import Callback
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.methods import shapley
from fedfacet.records import FederationState, RoundResult
from fedfacet.storage.table import table_of_clients
from fedfacet.types import ClientUpdate


class ContributionIndex(Callback):
    r"""Share out what each round gained in accuracy among the clients whose updates arrived, and add up the shares.

    In round t a coalition S of these clients is worth :math:`v^t(S)`, the accuracy on the server's samples of the model that
    was sent plus the coalition's mean update, :math:`\sum_{k \in S} n_k \Delta_k / \sum_{k \in S} n_k`. With the Shapley values
    :math:`\phi_k^t` of that game (``fedfacet.methods.shapley``), a client's index is

    .. math:: c_k = \sum_t \lambda^t \frac{\phi_k^t}{\sum_j |\phi_j^t|},

    without a unit; a round in which all values are 0 adds nothing. ``contributions.csv`` has a row per update that arrived:
    round, client, ``shapley`` (:math:`\phi_k^t`, a difference of accuracies in [-1, 1]) and ``index``, :math:`c_k` so far.
    ``summary.json`` has the indices of all who ever contributed. The run's numbers stay what they are.

    Source: CI-MR of Song et al., Profit Allocation for Federated Learning, IEEE Big Data 2019, as the thesis' table 4 describes
    it. Neither the rule nor the defaults were checked against the paper.

    Deviations: with more than ``exact_up_to`` updates, values are estimated from ``permutations`` orders. What a coalition is
    worth is the accuracy of averages, whatever the aggregator does. The decay is 1 by default, so that all rounds count alike.

    The server needs samples of its own (``server_data=validation``). In a round with m updates it passes these through
    :math:`2^m` models, or through up to m times ``permutations``.

    Args:
        decay: lambda in (0, 1].
        exact_up_to: of how many updates values are exact, 0 or larger.
        permutations: how many orders are drawn for more, 1 or larger.
        tolerance: of accuracy, 0 or larger: from where on an order is cut short; 0 cuts none.
        run_dir: where the table goes.

    Raises:
        ValueError: if a value is out of range.
    """

    needs_logits = True

    needs_updates = True

    def __init__(
        self,
        *,
        decay: float = 1.0,
        exact_up_to: int = 10,
        permutations: int = 20,
        tolerance: float = 0.0,
        run_dir: Path,
        client_names: Sequence[str] = (),
    ) -> None:
        check_within("decay", decay, "(0, 1]")
        shapley.check_settings(exact_up_to, permutations, tolerance)
        self.decay = decay
        self.exact_up_to = exact_up_to
        self.permutations = permutations
        self.tolerance = tolerance
        self.table = table_of_clients(run_dir / "contributions.csv", client_names)
        self._index_K = torch.zeros(0, dtype=torch.float64)
        self._values: dict[int, float] = {}

    def judges(self) -> str | None:
        """Return that classes matter, and groups do not."""
        return "classes"

    def on_fit_start(self, federation: Federation) -> None:
        """Cut back what a killed run wrote after its last checkpoint.

        Raises:
            ConfigError: if clients hold parts of the model, of which there are no plain averages.
        """
        if federation.find(Submodels) is not None:
            raise ConfigError(
                "Expected clients that hold whole models for callbacks.contribution_index, but they hold parts: leave the "
                "callback out, or choose submodel=none."
            )
        self.table.cut_back(federation.state.round)

    def on_updates(self, federation: Federation, updates: Sequence[ClientUpdate]) -> None:
        """Find the round's values."""
        self._values = {}
        if updates:
            draw = rng.stream(federation.seed, "contributions", federation.state.round + 1)
            found = self._shapley(federation, federation.state, updates, draw)
            self._values = {update.client_id: value for update, value in zip(updates, found.tolist(), strict=True)}

    def _shapley(
        self, federation: Federation, before: FederationState, updates: Sequence[ClientUpdate], draw: np.random.Generator
    ) -> NDArray[np.float64]:
        evaluation = federation.find(ServerEvaluation)
        assert evaluation is not None  # `compatibility.py` refuses what judges without
        samples = evaluation.server_data.samples

        def accuracy(coalition: shapley.Coalition) -> float:
            members = [updates[i] for i in coalition]
            change = state.weighted_mean((one.delta | one.buffers, float(one.num_samples)) for one in members)
            return federation.engine.evaluate(state.add(before.model, change), [samples])[0].average_accuracy

        return shapley.shapley_values(
            accuracy,
            len(updates),
            draw,
            exact_up_to=self.exact_up_to,
            permutations=self.permutations,
            tolerance=self.tolerance,
        )

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Add to the indices, and append a row per client."""
        values, self._values = self._values, {}
        total = sum(map(abs, values.values()))
        index_K = self._index_K.clone() if len(self._index_K) else torch.zeros(result.num_clients, dtype=torch.float64)
        for client_id, value in values.items() if total else ():
            index_K[client_id] += self.decay**result.round * value / total
        self._index_K = index_K
        self.table.append(
            *({"round": result.round, "client": k, "shapley": value, "index": index_K[k].item()} for k, value in values.items())
        )

    def summarize(self, federation: Federation) -> Mapping[str, Any]:
        """Return the index of every client that has contributed."""
        ever = federation.state.participation_counts.nonzero().flatten().tolist()
        return {"contributions": {str(k): self._index_K[k].item() for k in ever if k < len(self._index_K)}}

    def state_dict(self) -> dict[str, Any]:
        """Return the indices, float64 of shape (K,), and by what the file is known."""
        return {"table": self.table.record(), "index": self._index_K}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the indices, and refuse a file that is not the run's; see ``Table.take_up``."""
        self.table.take_up(state_dict["table"])
        self._index_K = state_dict["index"]

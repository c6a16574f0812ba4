"""How evenly the global model serves the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.callbacks.base import Measurement
from fedfacet.data.held_out_clients import HeldOutClients
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation


@dataclass(eq=False, kw_only=True)
class ClientFairness(Measurement):
    """Measure the global model on what every client holds out of its own samples, and how far clients are apart.

    Metrics are those of ``fairness_over_clients``, as ``client_fairness/acc_mean`` and so on. Clients that hold out nothing are
    left out; ``client_fairness/num_clients`` says how many are left.

    Where there are clients that never take part, they are measured likewise, as ``client_fairness/held_out_clients/acc_mean``
    and so on. ``client_fairness/held_out_clients/gap`` is the mean over clients that may take part minus the mean over those
    that never do. Nobody has trained on any of the samples of either, so that it is the participation gap of Yuan, Morningstar,
    Ning and Singhal, What Do We Mean by Generalization in Federated Learning?, ICLR 2022, arXiv:2110.14216.

    Source: Li et al., Fair Resource Allocation in Federated Learning, arXiv:1905.10497, section 4.1, table 1; accuracy parity
    between clients in the thesis, table 20.

    Args:
        local_holdout: per client the positions of what it holds out.
        held_out_clients: those that never take part; ``None`` for none.

    Raises:
        FedFacetError: if no client holds out anything, of those that may take part or of those that never do.
    """

    name = "client_fairness"
    measures_held_out_clients: ClassVar[bool] = True

    local_holdout: Sequence[NDArray[np.int64]]
    held_out_clients: HeldOutClients | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._splits = [positions for positions in self.local_holdout if len(positions)]
        never = self.held_out_clients.local_holdout if self.held_out_clients is not None else ()
        self._never = [positions for positions in never if len(positions)]
        if not self._splits or (self.held_out_clients is not None and not self._never):
            raise FedFacetError(
                "Expected clients that hold out some of their samples for callbacks.client_fairness, but nobody "
                f"{'does' if not self._splits else 'of partition.held_out_clients does'}: set partition.local_holdout=0.2, or "
                "leave the callback out."
            )

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        accuracies = np.full(len(self._splits) + len(self._never), np.nan)
        if self.is_due(federation, round):
            measured = federation.engine.evaluate(federation.state.model, [*self._splits, *self._never])
            accuracies = np.array([counts.average_accuracy for counts in measured])
        taking_part, never = np.split(accuracies, [len(self._splits)])
        metrics = {f"client_fairness/{name}": value for name, value in fairness_over_clients(taking_part).items()}
        if self._never:
            new = fairness_over_clients(never) | {"gap": float(taking_part.mean() - never.mean())}
            metrics |= {f"client_fairness/held_out_clients/{name}": value for name, value in new.items()}
        return metrics


def fairness_over_clients(accuracies_K: NDArray[np.float64]) -> dict[str, float]:
    r"""Return how accuracies :math:`x_k` in [0, 1] spread over K clients, each of which counts the same.

    ``acc_mean``, ``acc_std`` (population), ``acc_worst`` and ``acc_best``; ``acc_worst_tenth`` and ``acc_best_tenth``, means
    over the :math:`\lceil K / 10 \rceil` clients at either end; ``jain``, the index
    :math:`(\sum_k x_k)^2 / (K \sum_k x_k^2)` of Jain et al. (1984), from 1 / K (one client has everything) to 1 (all alike);
    ``cosine``, its square root, the cosine between the accuracies and a constant. These two are NaN where all accuracies are 0.
    ``num_clients`` is K.

    Example:
        >>> fairness = fairness_over_clients(np.array([0.9, 0.6, 0.9]))
        >>> [round(fairness[name], 4) for name in ("acc_mean", "acc_std", "acc_worst_tenth", "jain")]
        [0.8, 0.1414, 0.6, 0.9697]
    """
    x, number = np.sort(accuracies_K), len(accuracies_K)
    tenth = ceil(number / 10)
    squares = float((x**2).sum())
    jain = float(x.sum()) ** 2 / (number * squares) if squares else float("nan")
    return {
        "acc_mean": float(x.mean()),
        "acc_std": float(x.std()),
        "acc_worst": float(x[0]),
        "acc_best": float(x[-1]),
        "acc_worst_tenth": float(x[:tenth].mean()),
        "acc_best_tenth": float(x[-tenth:].mean()),
        "jain": jain,
        "cosine": jain**0.5,
        "num_clients": float(number),
    }

"""How much the clients' models give away, round by round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedfacet import state
from fedfacet.attacks import Attack, Gap, LossThreshold
from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.clients.personal_memory import local_model
from fedfacet.data.audit_set import AuditSet, Members
from fedfacet.data.federated import FederatedData
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import NAN
from fedfacet.metrics.roc import Roc, pooled_auc
from fedfacet.plots.style import COLOURS, DASHES, saved_figure
from fedfacet.records import FederationState
from fedfacet.storage.run_files import rows_of
from fedfacet.types import ClientUpdate

ATTACKS: Mapping[str, Attack] = {"gap": Gap(), "loss_threshold": LossThreshold()}


@dataclass(eq=False, kw_only=True)
class Membership(UpdatesMeasurement):
    r"""Tell members from others by what each client's model, after local training, says of them; no model is trained for it.

    Metrics, for the attacks ``gap`` and ``loss_threshold``: ``membership/auc_gap``, the AUC of all pairs of a member and
    another of one model, :math:`\sum_k U_k / \sum_k n_k m_k`, and ``membership/auc_gap_low``, ``..._high``, its 95 % interval;
    ``membership/num_models``, how many of the round's models were attacked. Clients with too few samples are left out, and so
    is a model with NaN or infinite entries. ``attack.py`` finds the same numbers with ``members.most=1000``. They are drawn
    into ``membership.png``.

    This looks at what no server may see. It watches the run and changes nothing.

    Args:
        data: its clients' training samples are the members.
        run_dir: where the picture goes.
        others: what is told apart from members, as in ``Members``.
        most: members, and others, of each client at most, 1 or larger.

    Raises:
        FedFacetError: if clients are to hold out samples but none does, or no client has samples enough.
    """

    needs_logits = True

    name = "membership"

    data: FederatedData
    run_dir: Path
    others: str | None = None
    most: int = 1000
    _sets: dict[int, AuditSet | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._members = Members(others=self.others, most=self.most)
        self._shared_others = self._members.source(self.data) == "test"
        largest = max(range(self.data.partition.num_clients), key=lambda client: len(self.data.partition.indices[client]))
        self._members.of_client(self.data, largest)  # refuses if not even this one has samples enough

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the round's models."""
        before, updates = self.take_round()
        rocs: dict[str, list[Roc]] = {name: [] for name in ATTACKS}
        for update in updates if before is not None and self.is_due(federation, round) else ():
            assert before is not None
            for name, roc in self._attacked(federation, before, update).items():
                rocs[name].append(roc)
        metrics: dict[str, float] = {"membership/num_models": len(rocs["gap"])}
        for name, of in rocs.items():
            auc, low, high = pooled_auc(of, shared_others=self._shared_others) if of else (NAN, NAN, NAN)
            metrics |= {f"membership/auc_{name}": auc, f"membership/auc_{name}_low": low, f"membership/auc_{name}_high": high}
        return metrics

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Draw the AUCs by round."""
        metrics = self.run_dir / "metrics.csv"
        if status != "failed" and federation.state.round and metrics.exists():
            plot_membership(metrics, tuple(ATTACKS), self.run_dir / "membership.png")

    def _attacked(self, federation: Federation, before: FederationState, update: ClientUpdate) -> dict[str, Roc]:
        audit_set = self._set_of(update.client_id)
        model = local_model(federation.sent(before, update.client_id), update)
        if audit_set is None or not state.all_finite(model):
            return {}
        (predicted,) = federation.engine.predict(model, [audit_set.samples], update.memory)
        signals = audit_set.signals(predicted.logits, self.data.dataset.y[audit_set.samples])
        return {name: audit_set.roc(attack.scores(signals)) for name, attack in ATTACKS.items()}

    def _set_of(self, client_id: int) -> AuditSet | None:
        if client_id not in self._sets:
            try:
                self._sets[client_id] = self._members.of_client(self.data, client_id)
            except FedFacetError:
                self._sets[client_id] = None
        return self._sets[client_id]


def plot_membership(metrics_csv: Path, attacks: Sequence[str], path: Path) -> None:
    """Draw the AUC of each attack by round with its 95 % interval into a PNG.

    Dashes: an attack that knows nothing.
    """
    rows = [row for row in rows_of(metrics_csv) if row.get(f"membership/auc_{attacks[0]}", "") not in ("", "nan")]
    rounds = [int(row["round"]) for row in rows]
    with saved_figure(path, 4.2, 2.8) as figure:
        axes = figure.subplots()
        for colour, name in zip(COLOURS, attacks, strict=False):
            auc, low, high = ([float(row[f"membership/auc_{name}{end}"]) for row in rows] for end in ("", "_low", "_high"))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(rounds, auc, color=colour, linewidth=1.2, marker="o" if len(rounds) == 1 else "", label=name)
        axes.axhline(0.5, color="0.4", linestyle=DASHES, linewidth=0.8)
        axes.set(xlabel="round", ylabel="AUC, models after local training")
        axes.locator_params(axis="x", integer=True)
        axes.legend(loc="upper left")

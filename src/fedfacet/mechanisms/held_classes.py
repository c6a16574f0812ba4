"""Rows of a classifier's head that are averaged over the clients that hold samples of their class."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfacet.errors import ConfigError
from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.submodels.parts import only_where
from fedfacet.types import PARTS, ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class HeldClasses(Mechanism):
    r"""Averages the head's row of each class over the round's clients that hold samples of it.

    .. math:: w_c \leftarrow w_c + \frac{\sum_{k \in H_c} p_k \, \Delta w_{kc}}{\sum_{k \in H_c} p_k}

    with :math:`w_c` the row and the bias of class c, :math:`H_c` the round's clients with samples of it, and :math:`p_k` the
    aggregator's weights. Rows of classes that no client of the round holds keep their values. All other tensors are averaged
    as ever. A client says once in a run which classes it holds.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264, section 3 (masking). Compared with the function ``combine`` of
    the authors' code, where the server knows each client's classes.

    Args:
        held_classes: what clients are asked for.
        head: the name of the model's last layer, with ``weight`` and ``bias`` of one row per class.
    """

    rank = 62
    provides = frozenset({PARTS})

    held_classes: Query
    head: str = "head"

    def plan(self, round: Round) -> None:
        """Ask those who will train."""
        self._rows(round.facts)
        round.queries.report(self.held_classes, [client_id for client_id, part in round.finished.items() if part > 0])

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Leave out of each update the rows of classes that its client does not hold."""
        known = round.queries.disclosures.get(self.held_classes.name, {})
        held = {task.client_id: torch.tensor(known[task.client_id]) > 0 for task in round.tasks}
        if all(bool(classes.all()) for classes in held.values()):
            return inner
        names = self._rows(round.facts)

        def by_class(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            covered = {name: torch.zeros_like(model[name]) for name in names}
            whole = {name: torch.ones(()).expand_as(tensor) for name, tensor in model.items()}

            def masked() -> Iterator[ClientUpdate]:
                for update in updates:
                    rows = {name: _like(held[update.client_id], model[name]) for name in names}
                    mask = whole if update.mask is None else update.mask
                    mask = {**mask, **_times(mask, rows)}
                    covered.update({name: covered[name].maximum(mask[name]) for name in names})
                    yield replace(update, delta={**update.delta, **_times(update.delta, rows)}, mask=mask)

            next_server, next_model = inner(server, model, masked())
            return only_where(covered, server, next_server), only_where(covered, model, next_model)

        return by_class

    def _rows(self, facts: Facts) -> list[str]:
        """Return the names of the head's tensors.

        Raises:
            ConfigError: if the model has none, or if they have other rows.
        """
        names = [name for name in (f"{self.head}.weight", f"{self.head}.bias") if name in facts.parameters]
        if not names or any(len(facts.model[name]) != facts.num_classes for name in names):
            raise ConfigError(
                f"The model has no layer `{self.head}` of one row per class: name its last layer by "
                "`mechanisms.held_classes.head`, or leave mechanisms=held_classes out."
            )
        return names


def _times(bundle: State, rows: State) -> State:
    return {name: bundle[name] * row for name, row in rows.items()}


def _like(classes: Tensor, tensor: Tensor) -> Tensor:
    """Return 1 for rows of classes that are held and 0 for others, to be multiplied with a tensor."""
    return classes.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))

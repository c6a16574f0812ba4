"""Updates that are added up along a tree, by whichever process trains: ``engine=distributed engine.sums=tree``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.callbacks.base import Callback
from fedfacet.engines.base import Engine
from fedfacet.engines.distributed import DistributedEngine
from fedfacet.errors import ConfigError
from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.mechanisms.updates import UpdateCheck, checked
from fedfacet.parallel.sums import Weighed
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy_gate import stated
from fedfacet.selectors.base import ClientSelector
from fedfacet.submodels.parts import Parts
from fedfacet.types import ASYNCHRONOUS, ClientTask, ClientUpdate, Facts, ServerState, State, SummedUpdate


class SummedUpdates(UpdateCheck):
    """Gives the aggregator the mean of a round's updates as the only one.

    The engine checks each update where it adds it to the sum, and yields it without its tensors.

    Args:
        engine: adds up.
        aggregator: says by which weights.
        facts: what clients send.
        on_bad_update: as for ``UpdateCheck``.
    """

    def __init__(self, engine: DistributedEngine, aggregator: Aggregator, facts: Facts, on_bad_update: str) -> None:
        super().__init__(on_bad_update)
        self._engine, self._aggregator, self._facts = engine, aggregator, facts
        engine.weigh = self._weighed

    def _weighed(self, update: ClientUpdate, task: ClientTask) -> tuple[SummedUpdate, Weighed | None]:
        """Return an update without its tensors, and what it adds to the sum; ``None`` where it is silent or not valid."""
        fault, num_floats = checked(update, task, self._facts, {}, {})
        if fault is not None and not isinstance(update, ClientUpdate):
            return SummedUpdate(task.client_id, {}, {}, 1, 1, 1.0, {}, fault=fault), None
        values = {field.name: getattr(update, field.name) for field in fields(ClientUpdate)} | {"delta": {}, "buffers": {}}
        summed = SummedUpdate(**values, fault=fault, num_floats=num_floats)
        if fault is not None:
            return replace(summed, extras={}, memory={}), None
        if update.silent is True:
            return summed, None
        sent = update.delta, update.buffers if self._aggregator.buffers == "average" else {}
        return summed, Weighed(1.0, [*map(state.wide, sent)]).times(self._aggregator.weight(update))

    @staticmethod
    def verdict(update: ClientUpdate, *_: Any) -> tuple[str | None, int]:
        """Say what is wrong with an update, and how many numbers arrived of it, as was found where it was added to the sum."""
        assert isinstance(update, SummedUpdate)
        return update.fault, update.num_floats

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Give the aggregator the mean of the valid updates, if there is one, as an update of no client."""

        def summed(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            for _ in updates:
                pass
            if (total := self._engine.total()) is None:
                return inner(server, model, ())
            delta, buffers = (state.like(mean, model) for mean in total.mean())
            return inner(server, model, iter([ClientUpdate(-1, delta, buffers, 1, 1, 1.0, {})]))

        return summed


def sums_updates(engine: Engine) -> bool:
    """Tell whether an engine adds updates up itself."""
    return isinstance(engine, DistributedEngine) and engine.sums == "tree"


def check_summed(
    aggregator: Aggregator,
    selector: ClientSelector,
    callbacks: Mapping[str, Callback],
    parts: Parts | None,
    privacy: CentralDP | None,
    mechanisms: Sequence[Mechanism],
    names: Mapping[str, Any],
) -> None:
    """Reject parts that look at single updates, where only their mean reaches the server.

    Raises:
        ConfigError: naming the part.
    """
    watching = next((f"callbacks.{name}" for name, callback in callbacks.items() if callback.needs_updates), None)
    asks = aggregator.report is not None or aggregator.judges is not None or ASYNCHRONOUS in aggregator.provides
    for rejected, what in (
        (
            not stated(aggregator, "takes_mean") or asks,
            f"aggregator={names['aggregator']} looks at each update: choose fedavg, fedavgm or fedadam",
        ),
        (
            selector.needs_updates is not None,
            f"selector={names['selector']} looks at each update: choose another selector, such as uniform",
        ),
        (watching is not None, f"{watching} looks at each update: leave it out"),
        (mechanisms, "a mechanism of your own may look at each update: leave it out"),
        (parts is not None, "clients hold parts of the model: choose capacity=whole submodel=whole"),
        (privacy is not None, "privacy=central clips each update at the server: choose another privacy"),
    ):
        if rejected:
            raise ConfigError(
                f"With engine.sums=tree only the mean of the updates reaches the server, but {what}, or give "
                "engine.sums=cohort."
            )

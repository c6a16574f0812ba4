"""A run's checkpoints taken up again: its rounds (law 1: a function of the state before them), and its clients measured."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fedfacet import state
from fedfacet.build import rebuild, reload_data
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.decomposition import Decomposition
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.config import check_trusted
from fedfacet.data.federated import FederatedData
from fedfacet.errors import CheckpointError
from fedfacet.federation import Federation
from fedfacet.mechanisms.schedule import LearningRateSchedule
from fedfacet.mechanisms.termination import EarlyStop
from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.metrics.loss_decomposition import LossDecomposition
from fedfacet.records import FederationState
from fedfacet.schedulers import Scheduler
from fedfacet.storage import checkpoint
from fedfacet.types import ServerState

Watcher = TypeVar("Watcher", bound=Callback)


class _OneRound(Scheduler):
    """A round's factor without a look at what the round measures, which only later rounds depend on.

    What measured that for the run's own scheduler need not be there.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def factor(self, server: ServerState, round: int) -> float:
        """Return it."""
        return self._factor


@dataclass(frozen=True, slots=True, eq=False)
class RoundAgain(Generic[Watcher]):
    """A round that was run again, while its engine is open.

    Attributes:
        federation: in the state after the round.
        data: who trained on what.
        before: the state before the round.
        watcher: what looked at the round.
        settings: of the run, as its checkpoint has them.
        num_rounds: how many rounds the run has done; a round beyond them is the one that would come next.
        same_model: whether the new global model is, bit for bit, the one in the run's checkpoint of that round; ``None`` where
            there is none.
    """

    federation: Federation
    data: FederatedData
    before: FederationState
    watcher: Watcher
    settings: Mapping[str, Any]
    num_rounds: int
    same_model: bool | None

    @property
    def round(self) -> int:
        """The number of the round."""
        return self.federation.state.round


@contextmanager
def round_again(
    run_dir: Path, round: int | None, watcher: Callable[[FederatedData], Watcher], *, trust: Sequence[str] = ()
) -> Iterator[RoundAgain[Watcher]]:
    """Run a round again, from the checkpoint before it, and lend what comes of it; nothing is written.

    Args:
        run_dir: the run folder.
        round: its number, 1 or larger; ``None`` for the last round of the run that can be run again, and for the one that
            would come next where only ``last.ckpt`` is there.
        watcher: makes what looks at the round, of the run's data.
        trust: modules that the checkpoint may name code of, besides fedfacet's own and torch's optimizers.

    Raises:
        CheckpointError: if there is no checkpoint of the round before, or if it names other code.
        FedFacetError: as in ``build``.
    """
    files = checkpoints_of(run_dir)
    num_rounds = max(files)
    if round is None:
        round = max((before + 1 for before in files if before < num_rounds), default=num_rounds + 1)
    if round - 1 not in files:
        able = sorted(before + 1 for before in files)
        there = f"round {able[0]}" if len(able) == 1 else f"rounds {', '.join(map(str, able))}"
        raise CheckpointError(
            f"Expected a round that {run_dir} can do again, {there}, but got {round}: a round starts from the checkpoint of "
            "the one before, and a run that is started with callbacks.save_checkpoint.keep=all keeps them all."
        )
    before, settings = checkpoint.load(files[round - 1])
    check_trusted(settings, trust, files[round - 1])
    federation, data = rebuild({**settings, "callbacks": {}, "logger": {}}, run_dir), reload_data(settings)
    looks = watcher(data)
    with contextlib.closing(federation.engine):
        federation.restore(before)
        federation.put(Callbacks({"watcher": looks}))
        federation.put(LearningRateSchedule(_OneRound(federation.order(before, 0).lr_factor)))
        federation.drop(EarlyStop)  # as for the scheduler
        federation.run_round()
        saved = checkpoint.load(files[round])[0].model if round in files else None
        same = None if saved is None else state.digest(saved) == state.digest(federation.state.model)
        yield RoundAgain(federation, data, before, looks, settings, num_rounds, same)


class DecomposedRound(NamedTuple):
    """A round that was run again to be decomposed.

    Attributes:
        round: its number.
        num_rounds: as in ``RoundAgain``.
        client_ids: the participants, in cohort order.
        decomposition: of the loss.
        same_model: as in ``RoundAgain``.
    """

    round: int
    num_rounds: int
    client_ids: tuple[int, ...]
    decomposition: LossDecomposition
    same_model: bool | None


def decompose_round(run_dir: Path, round: int | None = None, *, trust: Sequence[str] = ()) -> DecomposedRound:
    """Run a round again and decompose the loss after it; the arguments are those of ``round_again``.

    Raises:
        CheckpointError: as in ``round_again``, and if no update arrived in the round.
        FedFacetError: as in ``build``.
    """
    with round_again(run_dir, round, lambda data: Decomposition(data=data), trust=trust) as again:
        if again.watcher.last is None:
            raise CheckpointError(
                f"Expected a round in which updates arrived, but in round {again.round} of {run_dir} none did: choose another "
                "one."
            )
        decomposition, client_ids = again.watcher.last
        return DecomposedRound(again.round, again.num_rounds, client_ids, decomposition, again.same_model)


def measure_own_samples(run_dir: Path, *, trust: Sequence[str] = ()) -> tuple[list[GroupCounts], bool]:
    """Measure every client's model of a run's last checkpoint on the client's own samples; nothing is written.

    The model is the global one, with the client's own layers where it has some; the samples are those that it holds out, or
    those that it trains on where it holds out none.

    Args:
        run_dir: the run folder.
        trust: as in ``round_again``.

    Returns:
        Per client the counts; and whether its samples are held out.

    Raises:
        CheckpointError: if there is no checkpoint, or if it names other code.
        FedFacetError: as in ``build``.
    """
    last = run_dir / "checkpoints" / "last.ckpt"
    saved, settings = checkpoint.load(last)
    check_trusted(settings, trust, last)
    federation = rebuild({**settings, "callbacks": {}, "logger": {}}, run_dir)
    data = reload_data(settings)
    held_out = any(map(len, data.local_holdout))
    splits = data.local_holdout if held_out else data.partition.indices
    with contextlib.closing(federation.engine):
        federation.restore(saved)
        counts = [
            federation.engine.evaluate(federation.sent(saved, client_id).model, [own], saved.memory.get(client_id))[0]
            for client_id, own in enumerate(splits)
        ]
        return counts, held_out


def checkpoints_of(run_dir: Path) -> dict[int, Path]:
    """Return the checkpoints of a run by the number of rounds that were done when they were written.

    ``previous.ckpt`` is among them, unless it is damaged.

    Raises:
        CheckpointError: if there is none, or if ``last.ckpt`` cannot be read.
    """
    folder = run_dir / "checkpoints"
    last = folder / "last.ckpt"
    done = checkpoint.load(last)[0].round
    named = {int(match[1]): file for file in folder.glob("*.ckpt") if (match := re.fullmatch(r"round_(\d+)", file.stem))}
    with contextlib.suppress(CheckpointError):
        previous = folder / checkpoint.PREVIOUS
        named.setdefault(checkpoint.load(previous)[0].round, previous)
    return {round: file for round, file in named.items() if round <= done} | {done: last}

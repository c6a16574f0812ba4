"""The mechanisms of a round, each in a file: see ``fedfacet.mechanism``."""

from collections.abc import Callable
from typing import Any

from fedfacet.accounting import Accounting
from fedfacet.clock import Clock
from fedfacet.mechanism import Mechanism
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.mechanisms.disclosure import DisclosureControl
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.mechanisms.schedule import LearningRateSchedule
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.mechanisms.termination import EarlyStop
from fedfacet.participation import Participation
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.schedulers import Scheduler
from fedfacet.submodels.parts import Parts
from fedfacet.termination import Termination


def mechanisms_of(
    *,
    scheduler: Scheduler | None = None,
    participation: Participation | None = None,
    disclosure: DisclosurePolicy | None = None,
    accounting: Accounting | None = None,
    clock: Clock | None = None,
    parts: Parts | None = None,
    evaluation: ServerEvaluation | None = None,
    termination: Termination | None = None,
) -> list[Mechanism]:
    """Return the mechanisms that put parts to work."""
    given: list[tuple[Any, Callable[[Any], Mechanism]]] = [
        (scheduler, LearningRateSchedule),
        (participation, ClientParticipation),
        (disclosure, DisclosureControl),
        (accounting, DifferentialPrivacy),
        (clock, SimulatedDevices),
        (parts, Submodels),
        (termination, EarlyStop),
    ]
    made = [mechanism(part) for part, mechanism in given if part is not None]
    return made if evaluation is None else [evaluation, *made]

"""The mechanisms of a round, each in a file: see ``fedfacet.mechanism``."""

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
    made: list[Mechanism] = [evaluation] if evaluation is not None else []
    if scheduler is not None:
        made.append(LearningRateSchedule(scheduler))
    if participation is not None:
        made.append(ClientParticipation(participation))
    if disclosure is not None:
        made.append(DisclosureControl(disclosure))
    if accounting is not None:
        made.append(DifferentialPrivacy(accounting))
    if clock is not None:
        made.append(SimulatedDevices(clock))
    if parts is not None:
        made.append(Submodels(parts))
    if termination is not None:
        made.append(EarlyStop(termination))
    return made

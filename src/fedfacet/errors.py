"""What a caller may want to catch. Each carries one sentence: what was expected, what came, what to do."""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of somebody else's says, or its name where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def fault_of(error: BaseException) -> str:
    """Return the class of an error of somebody else's, and the first line of what it says."""
    return f"{type(error).__name__}: {first_line(error)}"


class FedFacetError(Exception):
    """A mistake that the user can fix; the scripts print its sentence and exit with status 2."""


class ConfigError(FedFacetError):
    """An unknown option, a misspelt key or an impossible value."""


class DatasetNotFoundError(FedFacetError):
    """The files of a data set are not where they were looked for."""


class DatasetCorruptError(FedFacetError):
    """A file of a data set is truncated or cannot be read."""


class InfeasiblePartitionError(FedFacetError):
    """A partition asks for samples that the data set does not have."""


class CheckpointError(FedFacetError):
    """A checkpoint is missing, truncated, or belongs to another run."""


class RunFinished(CheckpointError):
    """A run that shall go on has nothing left to do; with ``resume=auto`` that is no mistake.

    Args:
        sentence: says so to whoever named the run.
        rounds: how many it has done.
    """

    def __init__(self, sentence: str, rounds: int) -> None:
        super().__init__(sentence)
        self.rounds = rounds


class BadUpdateError(FedFacetError):
    """A client's update holds NaN, infinity, or tensors of the wrong names or shapes."""


class SelectionError(FedFacetError):
    """A selector broke its contract: wrong number of clients, repeated, or not available."""


class AggregationError(FedFacetError):
    """An aggregator broke its contract: it read updates twice, wrote to the model, or returned something else."""


class DisclosureError(FedFacetError):
    """A part asks clients for more than the disclosure policy allows, or reads what clients do not know."""


class Interrupted(FedFacetError):
    """The user or the system asked the run to stop; the state of the last whole round is kept.

    Args:
        signal: the number of the signal, so that the process can exit with 128 + signal.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


class EngineError(FedFacetError):
    """The processes that run the clients do not do so."""

"""Training steps that are recorded once, as CUDA graphs, and replayed: their kernels start without Python."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fedfacet import rng

_WARM_UPS = 3  # torch's own number: libraries choose their kernels and allocate in the first steps
_MOST = 32  # recorded steps that are kept; each keeps its activations' memory

Step = Callable[..., None]
"""Does its work on the tensors that it is given, and on others that stay where they are."""


class CannotRecordError(Exception):
    """Says "Expected X, but Y", without a full stop; the step can still be taken kernel by kernel."""


def complaint(error: Exception) -> str:
    """Return the first sentence of an error's message."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(". ")


class StepNumber(int):
    """The number of a step that is being recorded, which a replay would not change: a step must not look at it."""

    _used = False

    @classmethod
    @contextlib.contextmanager
    def watched(cls) -> Iterator["StepNumber"]:
        """Yield the number 0.

        Raises:
            CannotRecordError: in the end, if somebody has looked at it.
        """
        number = cls(0)
        yield number
        if number._used:
            raise CannotRecordError("Expected a `training_step` that does not use its `batch_idx`, but it does")


def _noting_use(name: str) -> Callable[..., Any]:
    def use(self: StepNumber, *others: Any) -> Any:
        self._used = True
        return getattr(int, name)(self, *others)

    return use


_READING = (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod", "floordiv", "truediv"),
    *("pow", "neg", "bool", "int", "index", "float", "str", "format"),
)
for _name in _READING:
    setattr(StepNumber, f"__{_name}__", _noting_use(f"__{_name}__"))


class _Recorded(NamedTuple):
    inputs: list[Tensor]
    replay: Callable[[], None]


class RecordedSteps:
    """Steps by their kind; all of them share one pool of memory, as one is replayed at a time.

    Args:
        device: an accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._recorded: dict[Hashable, _Recorded] = {}
        self._pool: Any = None

    def play(self, kind: Hashable, inputs: Sequence[Tensor], step: Step, written: Callable[[], Sequence[Tensor]]) -> None:
        """Take a step; the first of its kind is recorded before.

        Args:
            kind: equal for steps that differ in the values of tensors only.
            inputs: are copied to where the recorded step reads them.
            step: takes tensors like ``inputs``.
            written: returns all other tensors that the step writes to, which recording must leave as they were.

        Raises:
            CannotRecordError: if the step does what a recording cannot hold; all tensors are as they were.
        """
        recorded = self._recorded.get(kind)
        if recorded is None:
            if len(self._recorded) == _MOST:
                del self._recorded[next(iter(self._recorded))]
            recorded = self._recorded[kind] = self._record(inputs, step, written)
        for here, given in zip(recorded.inputs, inputs, strict=True):
            here.copy_(given, non_blocking=True)
        recorded.replay()

    def _record(self, inputs: Sequence[Tensor], step: Step, written: Callable[[], Sequence[Tensor]]) -> _Recorded:
        own = [tensor.clone() for tensor in inputs]
        before = [(tensor, tensor.clone()) for tensor in map(Tensor.detach, written())]
        generators = rng.get_states(self._device)
        if self._pool is None and self._device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        with _innermost() as inside:
            try:
                replay = capture(lambda: step(*own), self._device, self._pool)
            except CannotRecordError:
                raise
            except Exception as error:
                fault = f"{inside[-1] if inside else 'a step'} cannot be ({complaint(error)})"
                raise CannotRecordError(f"Expected layers that a CUDA graph can hold, but {fault}") from error
            finally:
                rng.set_states(generators, self._device)
                for tensor, value in before:
                    tensor.copy_(value)
        return _Recorded(own, replay)


def capture(step: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """Return what takes a step again that is taken a few times now, on a stream of its own.

    The graph has torch's generator of the device: a replay draws what the step would draw under the generator's state.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def can_record(device: torch.device) -> bool:
    """Tell whether steps on a device can be recorded."""
    return device.type == "cuda"


@contextlib.contextmanager
def _innermost() -> Iterator[list[str]]:
    """Yield the names of the modules that have been entered but not left."""
    inside: list[str] = []

    def enter(module: nn.Module, _: Any) -> None:
        inside.append(type(module).__name__)

    def leave(*_: Any) -> None:
        inside.pop()

    with contextlib.ExitStack() as handles:
        handles.enter_context(register_module_forward_pre_hook(enter))
        handles.enter_context(register_module_forward_hook(leave))
        yield inside

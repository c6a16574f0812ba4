"""A LightningModule of the user's own, called in every form that Lightning's Trainer takes, and what it logs."""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchmetrics import Metric

from fedfacet.errors import ConfigError, FedFacetError, fault_of
from fedfacet.types import Batch

log = logging.getLogger(__name__)

_SPLIT = re.compile(r"^(train(ing)?|val(id(ation)?)?|test)[/_.-]")
_FEW = 10  # samples, of which some metrics cannot be computed
_TOO_MANY = "too many values to unpack (expected 2"
_OF_A_PAIR = ("unpack", "tuple")  # in what a step says that takes (x, y, a), where it gets (x, y)


class Mean(NamedTuple):
    """A logged value.

    Attributes:
        value: its mean over samples.
        num_samples: how many.
        adds_up: whether the means of two parts, weighted by their numbers of samples, give the mean of both.
    """

    value: float
    num_samples: int
    adds_up: bool = True


def short_name(name: str) -> str:
    """Return a logged name without the split that it begins with.

    Example:
        >>> short_name("val_loss"), short_name("test/f1"), short_name("acc")
        ('loss', 'f1', 'acc')
    """
    return _SPLIT.sub("", name)


class SkippedStepError(Exception):
    """A ``training_step`` returned ``None``, as Lightning lets it, to skip the step."""


class LoggedValues:
    """Stands in for ``self.log`` of a module that no Trainer has, and keeps what it is given between ``start`` and ``take``.

    Args:
        module: whose ``log`` it is.

    Attributes:
        train_names: what ``training_step`` logs, without the split; known once it was tried.
        forms: step -> how many values of a batch it unpacks, 2 or 3; known once it was called.
        logits: value of ``Logits``, what ``forward`` returns; known once it was tried.
    """

    def __init__(self, module: L.LightningModule) -> None:
        self._module = module
        self.train_names: tuple[str, ...] = ()
        self.forms: dict[str, int] = {}
        self.logits = "per class"
        self._values: dict[str, list[tuple[Any, int]]] | None = None
        self._metrics: dict[str, Metric] = {}
        self._num_samples = 0
        self.batch_size = 0

    def start(self) -> None:
        """Forget what was logged, and reset the metrics."""
        self._values, self._metrics, self._num_samples, self.batch_size = {}, {}, 0, 0
        for part in self._module.modules():
            if isinstance(part, Metric):
                part.reset()

    def stop(self) -> None:
        """Keep nothing of what is logged from now on."""
        self._values, self._metrics = None, {}

    def see(self, num_samples: int) -> None:
        """Take note of the size of the batch that comes next."""
        self.batch_size = num_samples
        self._num_samples += num_samples

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        *others: Any,
        batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        """Keep a value, or hand it on to Lightning where a Trainer has the module."""
        if self._module._trainer is not None:
            settings |= {"prog_bar": prog_bar, "logger": logger, "on_step": on_step, "on_epoch": on_epoch}
            given: Any = {**settings, "reduce_fx": reduce_fx, "batch_size": batch_size}
            L.LightningModule.log(self._module, name, value, *others, **given)
            return
        if self._values is None:
            return
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        if reduce_fx not in ("mean", torch.mean):
            raise ValueError(
                f"Expected `self.log` to take means, which add up over clients, but {name!r} has reduce_fx={reduce_fx!r}: "
                "leave it out, or log a torchmetrics metric."
            )
        self._values.setdefault(name, []).append((_one_number(name, value), batch_size or self.batch_size or 1))

    def take(self) -> dict[str, Mean]:
        """Return the mean of each name over what was logged since ``start``, and keep no more."""
        values, metrics = self._values or {}, self._metrics
        self.stop()
        means = {}
        for name, pairs in values.items():
            numbers, sizes = (torch.tensor(list(map(float, part)), dtype=torch.float64) for part in zip(*pairs, strict=True))
            means[name] = Mean(float((numbers * sizes).sum() / sizes.sum()), int(sizes.sum()))
        for name, metric in metrics.items() if self._num_samples else ():
            try:
                value = float(_one_number(name, metric.compute()))
            except ValueError as error:  # of a metric that has seen too few samples
                if self._num_samples >= _FEW:
                    raise
                log.warning("%r is NaN over %d samples: %s", name, self._num_samples, error)
                value = float("nan")
            means[name] = Mean(value, self._num_samples, adds_up=False)
            metric.reset()
        return means


def _one_number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach()
    if isinstance(value, Real):
        return value
    came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(
        f"Expected `self.log` to be given one number for {name!r}, but it got {came}: log each under its own name."
    )


class Schedule(NamedTuple):
    """A scheduler of the learning rate within a client's round, and how often it is stepped."""

    scheduler: LRScheduler
    interval: str
    frequency: int


class OwnModule:
    """Calls the steps of a module as Lightning's Trainer does.

    A step may leave out the batch's number. It is given (x, y, a), or (x, y) where it unpacks two values. ``training_step``
    returns a loss, a mapping with ``loss``, or ``None`` to skip the step.

    Attributes:
        module: the module.
        logged: what it gives to ``self.log``.
        measured: split -> what the step that measures it logs, without the split; known once it was tried.
        carried: attributes that measuring changes, as they were before; known once it was tried.
    """

    def __init__(self, module: L.LightningModule) -> None:
        self.module = module
        known = vars(module).get("log")  # of a module that comes from another process, where it was tried
        self.logged = known if isinstance(known, LoggedValues) else LoggedValues(module)
        vars(module)["log"] = self.logged
        self.measured: dict[str, tuple[str, ...]] = {}
        self.carried: dict[str, Any] = {}
        self._numbered: dict[str, bool] = {}
        self._left_out: set[str] = set()
        self.schedules: list[Schedule] = []

    @property
    def is_plain(self) -> bool:
        """Whether its training step takes (x, y, a) and logs nothing, and its learning rate stays as it is."""
        return not self.logged.train_names and not self.schedules and self.logged.forms.get("training_step", 3) == 3

    @property
    def measuring_steps(self) -> dict[str, str]:
        """The step that measures each split, if any: ``test_step`` stands in for ``validation_step``, and the reverse."""
        kinds = {"val": "validation", "test": "test"}
        own = {split: kind for split, kind in kinds.items() if _is_own(self.module, f"{kind}_step")}
        return {split: own[split] if split in own else next(iter(own.values())) for split in kinds} if own else {}

    def fresh_optimizer(self) -> Optimizer:
        """Return the module's optimizer, and take note of its schedulers."""
        optimizer, self.schedules = configured(self.module)
        return optimizer

    def call(self, name: str, batch: Batch, number: int) -> Any:
        """Return what a step returns for a batch."""
        step = getattr(self.module, name)
        if name not in self._numbered:
            self._numbered[name] = takes_number(step)
        numbers = (number,) if self._numbered[name] else ()
        self.logged.see(len(batch.x))
        parts = self.logged.forms.get(name)
        if parts is not None:
            return step(batch if parts == 3 else tuple(batch[:2]), *numbers)
        try:
            output = step(batch, *numbers)
        except ValueError as error:
            if _TOO_MANY not in str(error):
                raise
            try:
                output = step(tuple(batch[:2]), *numbers)
            except Exception as other:
                if any(word in str(other) for word in _OF_A_PAIR):
                    raise error from None
                raise other from None
            self.logged.forms[name] = 2
            return output
        self.logged.forms[name] = 3
        return output

    def training_step(self, batch: Batch, number: int) -> Any:
        """Return what ``training_step`` returns for a batch.

        Raises:
            SkippedStepError: where that is nothing.
        """
        output = self.call("training_step", batch, number)
        if output is None:
            raise SkippedStepError
        return output

    def begin(self, optimizer: Optimizer | None, lr_factor: float, steps_per_epoch: int) -> None:
        """Reset what is logged and the schedulers, before the first step of a client.

        Args:
            optimizer: the last fresh one, whose learning rates are multiplied by ``lr_factor`` already.
            lr_factor: of the federation's own scheduler.
            steps_per_epoch: how many steps make an epoch.
        """
        self.logged.start()
        if optimizer is not None and self.schedules:
            schedule_steps(optimizer, self.schedules, lr_factor, steps_per_epoch)

    def end(self) -> dict[str, float]:
        """Return ``sum/NAME`` over samples and ``count/NAME``, how many samples, of each name that was logged."""
        logged = {short_name(name): mean for name, mean in self.logged.take().items()}
        if unknown := sorted(logged.keys() - set(self.logged.train_names) - self._left_out):
            self._left_out.update(unknown)
            log.warning(
                "%s.training_step logs %r, but did not on its first batch, so that it is left out: log the same names in "
                "every step.",
                type(self.module).__name__,
                unknown[0],
            )
        logged = {name: mean for name, mean in logged.items() if name in self.logged.train_names}
        sums = {f"sum/{name}": mean.value * mean.num_samples for name, mean in logged.items()}
        return sums | {f"count/{name}": mean.num_samples for name, mean in logged.items()}

    def epoch(self, kind: str, batches: Iterable[Batch]) -> dict[str, Mean]:
        """Return what the steps of one kind log over some batches, by its name without the split.

        Args:
            kind: ``"validation"`` or ``"test"``.
            batches: in eval mode, without gradients.
        """
        self.logged.start()
        for hook in (f"on_{kind}_start", f"on_{kind}_epoch_start"):
            getattr(self.module, hook)()
        for number, batch in enumerate(batches):
            self.call(f"{kind}_step", batch, number)
        self.logged.batch_size = 0
        for hook in (f"on_{kind}_epoch_end", f"on_{kind}_end"):
            getattr(self.module, hook)()
        return {short_name(name): mean for name, mean in self.logged.take().items()}

    def adds_up(self, kind: str) -> bool:
        """Tell whether nothing is computed at the end of an epoch, as far as the module's methods tell."""
        return not any(_is_own(self.module, f"on_{kind}_{end}") for end in ("epoch_end", "end"))


def takes_number(step: Callable[..., Any]) -> bool:
    """Tell whether a step takes the number of the batch beside it.

    Raises:
        ValueError: if it takes neither one argument nor two.
    """
    signature = inspect.signature(step)
    for arguments in ((object(), 0), (object(),)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    owner = type(getattr(step, "__self__", step)).__name__
    name = getattr(step, "__name__", "the step")
    raise ValueError(
        f"Expected {owner}.{name} to take a batch, and the batch's number if it likes, but it does not: write "
        f"`def {name}(self, batch, batch_idx)`."
    )


def _is_own(module: L.LightningModule, name: str) -> bool:
    return not getattr(type(module), name).__module__.startswith(("lightning.", "fedfacet."))


def configured(module: L.LightningModule) -> tuple[Optimizer, list[Schedule]]:
    """Return a module's only optimizer and its schedulers, in whichever form ``configure_optimizers`` returns them.

    Raises:
        ConfigError: if it fails, if there is no optimizer or several, or a scheduler that a client's round cannot step.
    """
    name = f"{type(module).__name__}.configure_optimizers"
    try:
        made: Any = module.configure_optimizers()
    except (FedFacetError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ConfigError(
            f"Expected {name} to return an optimizer, but it fails ({fault_of(error)}): fix it. A client has no "
            "Trainer, so numbers of steps are the module's own."
        ) from error
    if isinstance(made, Optimizer):
        return made, []
    optimizers, schedules = _taken_apart(made)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        came = type(made).__name__ if len(optimizers) < 2 else f"{len(optimizers)} of them"
        raise ValueError(
            f"Expected {name} to return one optimizer, but got {came}: return the optimizer itself, or a dict of it and "
            "its `lr_scheduler`."
        )
    return optimizers[0], [_schedule(name, one) for one in schedules]


def _taken_apart(made: Any) -> tuple[list[Any], list[Any]]:
    """Return optimizers and schedulers out of what Lightning lets ``configure_optimizers`` return."""
    if isinstance(made, Mapping):
        return [made.get("optimizer")], [made["lr_scheduler"]] if made.get("lr_scheduler") is not None else []
    if not isinstance(made, Sequence):
        return [], []
    if len(made) == 2 and all(isinstance(part, list | tuple) for part in made):
        return list(made[0]), list(made[1])
    parts = [_taken_apart(one) if isinstance(one, Mapping) else ([one], []) for one in made]
    return [one for part, _ in parts for one in part], [one for _, part in parts for one in part]


def _schedule(name: str, given: Any) -> Schedule:
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    scheduler, interval = settings.get("scheduler"), settings.get("interval", "epoch")
    frequency = settings.get("frequency", 1)
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        raise ValueError(
            f"Expected {name} to return a scheduler that counts steps or epochs, but got {type(scheduler).__name__}: "
            "return another one, or give the federation a `scheduler`."
        )
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise ValueError(
            f"Expected {name} to step its scheduler every step or epoch, but got interval={interval!r}, frequency={frequency!r}"
            ': give "step" or "epoch", and a whole number.'
        )
    return Schedule(scheduler, interval, frequency)


def schedule_steps(optimizer: Optimizer, schedules: Sequence[Schedule], lr_factor: float, steps_per_epoch: int) -> None:
    """Have an optimizer's steps also step its schedulers, whose own learning rates are multiplied by ``lr_factor``."""
    take_step = optimizer.step
    for scheduler in {id(one): one for schedule in schedules for one in _nested(schedule.scheduler)}.values():
        scheduler.base_lrs = [lr * lr_factor for lr in scheduler.base_lrs]
    taken = 0

    def step(*arguments: Any, **settings: Any) -> Any:
        nonlocal taken
        output = take_step(*arguments, **settings)
        taken += 1
        for scheduler, interval, frequency in schedules:
            if taken % (frequency * (1 if interval == "step" else steps_per_epoch)) == 0:
                scheduler.step()
        return output

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or schedulers warn of a step that they do not know
    optimizer.step = step  # type: ignore[method-assign]


def _nested(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return a scheduler and those that it is made of."""
    return [scheduler, *(inner for one in getattr(scheduler, "_schedulers", ()) for inner in _nested(one))]

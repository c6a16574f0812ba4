"""What a network returns and keeps, tried on a few samples before it trains."""

import contextlib
import logging
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import OneCycleLR

from fedfacet import rng, state
from fedfacet.clients.carried_state import PlainAttributes, accumulated, same
from fedfacet.clients.federated_module import Logits
from fedfacet.clients.module_measurement import try_measuring
from fedfacet.clients.own_module import OwnModule, SkippedStepError, short_name
from fedfacet.clients.trainer import Clients, ClientTrainer
from fedfacet.errors import ConfigError, FedFacetError, fault_of
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, State

log = logging.getLogger(__name__)

_ENOUGH = 32  # samples, of a batch that may be all that a client has
_TRAINED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def check_weights(module: nn.Module) -> None:
    """Refuse a network that cannot be federated, by looking only at its tensors.

    Raises:
        ConfigError: naming the tensor.
    """
    name, named = type(module).__name__, [*module.named_parameters(), *module.named_buffers()]
    for key, tensor in named:
        if is_lazy(tensor):
            raise ConfigError(
                f"Expected layers that know their inputs, but {key!r} of {name} has no shape yet: run it once on a batch first."
            )
        if tensor.is_meta:
            raise ConfigError(
                f"Expected weights in memory, but {key!r} of {name} is on the device meta: load its weights first."
            )
    trained: State = {key: tensor for key, tensor in module.named_parameters() if tensor.requires_grad}
    if not trained:
        raise ConfigError(
            f"Expected a network with weights to train, but {name} has no parameter that requires a gradient: add one, or call "
            "its `requires_grad_()`."
        )
    for key, tensor in trained.items():
        if tensor.dtype not in _TRAINED or tensor.layout is not torch.strided:
            raise ConfigError(
                f"Expected weights of real floating-point numbers, but {key!r} of {name} is {tensor.dtype}"
                f"{'' if tensor.layout is torch.strided else f' and {tensor.layout}'}: hold it as such, complex numbers by "
                "`torch.view_as_real`."
            )
    if (shared := _overlap(dict(named), trained)) is not None:
        raise ConfigError(
            f"Expected weights with memory of their own, but {shared[0]!r} of {name} shares some with {shared[1]!r}: give both "
            "names the same parameter, or make a view of it in `forward`."
        )
    saved = module.state_dict()
    known = {key for key, _ in module.named_parameters(remove_duplicate=False)}
    if odd := sorted(key for key, value in saved.items() if not isinstance(value, Tensor)) or sorted(known - saved.keys()):
        raise ConfigError(
            f"Expected a `state_dict` of {name} with its parameters, its buffers and nothing else, but {odd[0]!r} is missing "
            "or no tensor: leave `state_dict` as torch has it, and keep extra state in buffers."
        )


def _overlap(named: State, trained: State) -> tuple[str, str] | None:
    """Return two names of different tensors that have a number in common, one of them trained."""
    by_storage: dict[int, list[str]] = {}
    for key, tensor in named.items():
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)) and key in trained:
            return key, key
        if tensor.layout is torch.strided and tensor.numel():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(key)
    for keys in (keys for keys in by_storage.values() if len(keys) > 1 and not trained.keys().isdisjoint(keys)):
        places = {}
        for key in keys:  # layers of recurrent networks lie side by side in one memory
            tensor = named[key]
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            numbers = torch.arange(size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            places[key] = numbers.flatten() * tensor.element_size()
            for other in places.keys() - {key}:
                if {key, other} & trained.keys() and bool(torch.isin(places[key], places[other]).any()):
                    return key, other
    return None


def check_network(clients: Clients, buffers: str) -> None:
    """Have a batch pass through the networks, and take a step, so that what cannot train is refused before it does.

    A network that ends with a softmax trains, slowly and to worse numbers, and is warned of. A LightningModule of the user's
    own may have a network that returns something else, or none: then the module measures itself.

    Args:
        clients: whose networks are tried; no draw and no weight of theirs changes.
        buffers: what becomes of floating-point buffers, ``"average"`` or ``"keep"``.

    Raises:
        ConfigError: naming what the network returns, or keeps, or where it fails.
    """
    trial = _Trial(clients)
    classifies = isinstance(clients.objective, ClassificationObjective)
    if classifies and clients.dataset.targets is not None:
        raise ConfigError(
            f"Expected classes for {type(clients.objective).__name__}, but the data have numbers to predict: give a "
            "LightningModule whose `training_step` returns the loss."
        )
    own = clients.partition.indices[0]
    samples = own[: min(clients.local.batch_size, _ENOUGH)] if len(own) > 1 else own[[0, 0]]
    batch = clients.dataset.batch(samples, clients.device, clients.memory_format)
    for program in clients.programs if classifies else ():
        with _unchanged(clients, program):
            z, name = _predicted(program, batch), type(program.module).__name__
            check_logits(z, clients.dataset.num_classes, name)
            if (z >= 0).all() and torch.allclose(z.sum(dim=1), z.new_ones(())):
                log.warning("%s seems to return probabilities, but losses take logits: leave out its softmax.", name)
    if clients.program.own is not None and not classifies:
        for program in clients.programs:
            with _unchanged(clients, program):
                program.logits = Logits.PER_CLASS  # of another federation it may be another
                program.logits = _logits_of(clients, program, batch)
                clients.program.own.logged.logits = program.logits.value  # goes with the module to other processes
    hooked = clients.program.hooks is not None or clients.program.data_hooks is not None
    if clients.privacy is None and (classifies or not hooked):
        trial.take(buffers, batch if classifies else None)
    if clients.program.own is not None:
        _check_schedules(clients, clients.program.own)
        with _unchanged(clients, clients.program):
            try_measuring(clients.program, clients.program.own, batch)


@contextlib.contextmanager
def _unchanged(clients: Clients, program: ClientTrainer) -> Iterator[None]:
    """Draw the same numbers each time, and leave generators and weights as they were."""
    # Compiling for a trial would be for nothing.
    as_it_is = torch.compiler.set_stance("force_eager") if clients.compile else contextlib.nullcontext()
    before = state.clone(program.tensors)
    draw = rng.forked(0, "network-trial", device=clients.device, others=clients.draws_elsewhere)
    with draw, as_it_is:
        try:
            yield
        finally:
            if program.own is not None:
                program.own.logged.stop()
            program.load(before)  # a forward pass may count something in its buffers
            program.objective.zero_grad(set_to_none=True)


def _predicted(program: ClientTrainer, batch: Batch) -> Tensor:
    with program.evaluating():
        if program.predict_hooks is not None:
            program.predict_hooks.before_predict({})
        try:
            return program.forward(batch.x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            name, x = type(program.module).__name__, batch.x
            raise ConfigError(
                f"Expected {name} to take inputs of shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}, "
                f"but it fails at them ({fault_of(error)}): fix its `forward`, or give it other inputs."
            ) from error


def _logits_of(clients: Clients, program: ClientTrainer, batch: Batch) -> Logits:
    """Return what a module's ``forward`` gives for a batch."""
    if clients.dataset.targets is not None:
        return Logits.NONE
    try:
        with program.evaluating():
            z: object = program.forward(batch.x)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return Logits.NONE
    size, classes = len(batch.x), clients.dataset.num_classes
    shape = tuple(z.shape) if isinstance(z, Tensor) else ()
    if shape == (size, classes):
        return Logits.PER_CLASS
    return Logits.ONE if shape in ((size,), (size, 1)) and classes == 2 else Logits.NONE


def _check_schedules(clients: Clients, own: OwnModule) -> None:
    """Refuse a scheduler that ends before a client does."""
    local, name = clients.local, type(own.module).__name__
    lengths = {-(-len(indices) // local.batch_size) for indices in clients.partition.indices if len(indices)}
    of_all = {"step": local.amount * (1 if local.unit == "steps" else max(lengths))}
    of_all["epoch"] = local.amount // (min(lengths) if local.unit == "steps" else 1)
    for scheduler, interval, frequency in own.schedules:
        needed = of_all[interval] // frequency
        if isinstance(scheduler, OneCycleLR) and needed > scheduler.total_steps:
            raise ConfigError(
                f"Expected {name}.configure_optimizers to return a OneCycleLR that lasts for a client's round of {needed} "
                f"steps, but it has {scheduler.total_steps}: give it total_steps={needed}."
            )


def smallest_batch(clients: Clients) -> tuple[int, int]:
    """Return the client that has the smallest batch of all, and that batch's size."""
    local, sizes = clients.local, np.fromiter(map(len, clients.partition.indices), np.int64)
    rest = sizes % local.batch_size
    reaches_it = (local.unit == "epochs") | (local.amount >= np.ceil(sizes / local.batch_size))
    smallest = np.where((rest > 0) & reaches_it, rest, np.minimum(sizes, local.batch_size))
    smallest[sizes == 0] = local.batch_size  # who has nothing is refused elsewhere
    return int(smallest.argmin()), int(smallest.min())


class _Trial:
    """A training step on the smallest batch that any client has, or two of them where a network may remember the first."""

    def __init__(self, clients: Clients) -> None:
        self.clients, self.program = clients, clients.program
        self.name = type(self.program.module).__name__
        self.client_id, self.size = smallest_batch(clients)
        self.kept = PlainAttributes(self.program.module)
        self.before = self.kept.now()

    def take(self, buffers: str, seen: Batch | None) -> None:
        """Take the steps.

        Args:
            buffers: as in ``check_network``.
            seen: what the network predicts before and after; ``None`` for nothing.

        Raises:
            ConfigError: naming what is wrong.
        """
        if self.program.own is not None:
            self._note_names(self.program.own)
        samples, last = self.clients.owned[self.client_id], self.clients.partition.indices[-1]
        number = min(self.size, _ENOUGH)
        first, output = state.clone(self.program.buffers), self._output(seen)
        loss, ended = self._stepped(samples[:number])
        if buffers == "average":
            self._check_buffers(first, ended)
        if not self.kept.are_seen:
            return
        once = self.kept.now()
        if len(last) >= number:  # or the same batch twice may hide what is remembered of it
            self._stepped(last[-number:])
        again, _ = self._stepped(samples[:number])
        twice, output_again = self.kept.now(), self._output(seen)
        found = accumulated(once, twice)
        rounding = 0.0 if self.clients.device.type == "cpu" else 1e-3
        if found is None and not all(
            torch.allclose(one, other, rounding, rounding, equal_nan=True)
            for one, other in ((loss, again), (output, output_again))
        ):
            changed = (name for name in once if name not in self.before or not same(self.before[name], once[name]))
            found = next(changed, "")
        self.kept.restore(self.before)
        if found is not None:
            raise ConfigError(
                f"Expected a network whose state is in its parameters and buffers, but {self.name} keeps "
                f"{repr(found) if found else 'something'} elsewhere from batch to batch, so that it would pass from one client "
                "to the next: make it a buffer by `register_buffer`, or leave it out."
            )

    def _note_names(self, own: OwnModule) -> None:
        """Take note of what a module's training step logs."""
        samples = self.clients.owned[self.client_id][: min(self.size, _ENOUGH)]
        with _unchanged(self.clients, self.program):
            own.logged.start()
            self._step(samples)
            own.logged.train_names = tuple(map(short_name, own.logged.take()))

    def _output(self, seen: Batch | None) -> Tensor:
        """Return what the network says of some samples in eval mode."""
        if seen is None or not self.kept.are_seen:
            return torch.zeros(())
        with _unchanged(self.clients, self.program):
            return _predicted(self.program, seen)

    def _stepped(self, samples: NDArray[np.int64]) -> tuple[Tensor, State]:
        """Return a step's loss, and the buffers after it."""
        with _unchanged(self.clients, self.program):
            return self._step(samples), state.clone(self.program.buffers)

    def _step(self, samples: NDArray[np.int64]) -> Tensor:
        try:
            return self._loss_of(samples)
        except (FedFacetError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            fault = fault_of(error)
            if len(samples) == 1 and self._trains_on(samples[[0, 0]]):
                self._refuse_one(fault)
            remedy = "fix its `forward`, or the loss"
            if self.program.own is not None and not isinstance(self.program.objective, ClassificationObjective):
                remedy = "fix its `training_step`, to which a batch is x, y, a"
            raise ConfigError(
                f"Expected {self.name} to train on a batch of {len(samples)} samples, but it fails at them ({fault}): {remedy}."
            ) from error

    def _trains_on(self, samples: NDArray[np.int64]) -> bool:
        try:
            self._loss_of(samples)
        except Exception:
            return False
        return True

    def _refuse_one(self, fault: str) -> None:
        local, number = self.clients.local, len(self.clients.owned[self.client_id])
        alone = "its only one" if number == 1 else "left over for a batch by itself"
        raise ConfigError(
            f"Expected batches that {self.name} can train on, but one of client {self.client_id}'s {number} samples is {alone} "
            f"with local.batch_size={local.batch_size}, at which it fails ({fault}): give clients at least two samples, choose "
            "another `local.batch_size`, or a network without batch normalisation."
        )

    def _loss_of(self, samples: NDArray[np.int64]) -> Tensor:
        clients, program = self.clients, self.program
        batch = clients.shown.batch(samples, clients.device, clients.memory_format)
        program.train(True)
        if isinstance(objective := program.objective, ClassificationObjective):
            z = program.forward(batch.x)
            check_logits(z, clients.dataset.num_classes, self.name)
            loss = objective.loss(z, batch)
        else:
            try:
                loss = program.step(batch, 0)
            except SkippedStepError:
                return torch.zeros(())
        if not loss.requires_grad:
            raise ConfigError(
                f"Expected a loss that the weights of {self.name} have a part in, but it has no gradient: leave out what "
                "detaches it in `forward`, as `torch.no_grad` does."
            )
        if loss.isnan().any() and not batch.x.isnan().any():
            raise ConfigError(
                f"Expected a loss that is a number, but that of {self.name} is NaN on its first batch: fix its `forward`, its "
                "first weights or the loss."
            )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _check_buffers(self, before: State, after: State) -> None:
        """Refuse buffers that are unit vectors, and warn of others that may be no averages."""
        averages = {
            f"{prefix}.{key}".lstrip(".")
            for prefix, part in self.program.module.named_modules()
            for key in part._buffers
            if isinstance(part, _NormBase) or key.startswith("running_")
        }
        for name in before.keys() - averages - self.program.personal:
            if name not in after or torch.equal(before[name], after[name]):
                continue
            lengths = [float(tensor.norm()) for tensor in (before[name], after[name])]
            remedy = "give the aggregator buffers=keep, or keep it with the clients by `personal`"
            if before[name].numel() > 1 and all(abs(length - 1) < 1e-4 for length in lengths):
                raise ConfigError(
                    f"Expected buffers of which means can be taken, but {name!r} of {self.name} is a unit vector, and the mean "
                    f"of such is shorter: {remedy}."
                )
            log.warning(
                "The next model has the mean of the clients' %r of %s, which may be no running mean: if it is none, %s.",
                name,
                self.name,
                remedy,
            )


def check_logits(z: object, num_classes: int, model: str) -> None:
    """Refuse what is not a logit per class: a class too many would be counted as a class of the next group.

    Args:
        z: what the model returned for a batch, shape (B, Y) as it should be.
        num_classes: Y.
        model: its name, for the message.

    Raises:
        ConfigError: naming what came.
    """
    if isinstance(z, Tensor) and z.ndim == 2 and z.shape[1] == num_classes:
        return
    came = (
        f"a tensor of shape ({', '.join(['B', *map(str, z.shape[1:])])})" if isinstance(z, Tensor) else f"a {type(z).__name__}"
    )
    raise ConfigError(
        f"Expected {model} to return a logit for each of the {num_classes} classes, a tensor of shape (B, {num_classes}), but "
        f"it returns {came}: fix its `forward`."
    )

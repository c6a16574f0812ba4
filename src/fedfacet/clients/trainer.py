"""What runs at a client: it trains, predicts and answers questions. The only place that takes gradient steps (law 3).

A ``ClientTrainer`` is an objective made ready for one client after another, ``Training`` is one client's training of one round,
and ``Clients`` are all of them.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import TypeAlias

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfacet import rng, state
from fedfacet.builtin import draws_by_torch
from fedfacet.clients.client_data import Population
from fedfacet.clients.divided_training import HalfTrained, ProbedClients
from fedfacet.clients.federated_module import FederatedModule, compile_module
from fedfacet.clients.optimizers import bare_step_of, kept_optimizer, optimizer_to_keep, restore_optimizer, single_optimizer
from fedfacet.clients.own_module import SkippedStepError
from fedfacet.clients.personal_memory import own_model, to_keep
from fedfacet.clients.private_gradients import PrivateGradients
from fedfacet.clients.resident_model import ResidentModel
from fedfacet.data.fingerprint import fingerprint
from fedfacet.errors import EngineError
from fedfacet.objectives.classification import step_weight_of, take_loss
from fedfacet.privacy.disclosure import kinds_sent
from fedfacet.types import Batch, ClientEnd, ClientStart, ClientTask, ClientUpdate, Facts, State

_AVERAGED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""What means are taken of; shorter floats hold what is quantised."""

Begin: TypeAlias = Callable[["Clients", ClientTask], "Training"]
"""Makes a client's training."""


class ClientTrainer(FederatedModule):
    """An objective made ready to be used for one client after another; one program serves all clients of a shape of model.

    Args:
        objective: on its device already; scratch space, whose weights are overwritten by every client's.
        precision: ``"32-true"``, or ``"bf16-mixed"`` for bfloat16 wherever torch's autocast deems it safe.
        compile: have torch compile the federated module's forward and backward pass; on a GPU as CUDA graphs, since there the
            steps of small networks wait for their kernels to be launched one by one.
        personal: names of the federated module's tensors that stay with the client.
    """

    def __init__(
        self,
        objective: L.LightningModule,
        *,
        precision: str = "32-true",
        compile: bool = False,
        personal: Set[str] = frozenset(),
    ) -> None:
        objective.trainer = None  # of an earlier life; `self.log` would look for it
        super().__init__(objective, personal, precision)
        on_cpu = all(tensor.device.type == "cpu" for tensor in self.tensors.values())
        self.resident = None if on_cpu else ResidentModel(self.tensors)
        self.training_step = objective.training_step if self.own is None else self.own.training_step
        self.optimizer = self.new_optimizer()
        self.check_names(self.optimizer)
        # Somebody else's class of optimizer may keep more than its `state`, which is what is reset.
        self._reusable = type(self.optimizer).__module__.startswith(("torch.optim.", "fedfacet.")) and getattr(
            objective, "optimizer_is_fixed", False
        )
        self.bare_step, self.step_hooks = bare_step_of(self.optimizer)
        self.step_hooks = self.step_hooks if self._reusable else (True,)  # or each client has an optimizer of its own
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        if compile:
            compile_module(self.module)

    @property
    def tensors(self) -> State:
        """The module's trained parameters and its buffers; frozen parameters are everybody's own and stay as they are."""
        return self.parameters | self._persistent_buffers if self._buffer_slots else self.parameters

    @property
    def buffers(self) -> State:
        """The floating-point ones among the buffers, unless they follow from weights or the server gathers them."""
        if not self._buffer_slots:
            return {}
        named = self._persistent_buffers.items()
        return {name: buffer for name, buffer in named if buffer.dtype in _AVERAGED and name not in self._followers}

    @property
    def _persistent_buffers(self) -> State:
        return {name: tensor for name, of_module, key in self._buffer_slots if (tensor := of_module[key]) is not None}

    def moved_from(self, start: State, tensors: State) -> State:
        """Return by how much those of some tensors that leave the client have moved, on the CPU, in the usual memory order."""
        leaving = {name: tensor.detach().contiguous() for name, tensor in tensors.items() if name not in self.personal}
        if not leaving:
            return {}
        return state.subtract(leaving, start) if self.resident is None else self.resident.download(leaving, start)

    def load(self, weights: State) -> None:
        """Copy ``weights`` into the module's parameters and buffers, in place; those in no state dict are as at first again."""
        for buffers, key, first in self._hidden:
            buffers[key] = None if first is None else first.clone()
        if tensors := self.tensors:
            sources = weights if self.resident is None else self.resident.upload(weights)
            torch._foreach_copy_([tensor.detach() for tensor in tensors.values()], [sources[name] for name in tensors])

    def train(self, mode: bool) -> None:
        """Set the objective to training or evaluation; free of charge if it is there already."""
        if self._training is not mode or self.objective.training is not mode:
            self.objective.train(mode)
            self._training = mode

    def step(self, batch: Batch, step: int) -> Tensor:
        """Return the loss of one training step."""
        if not self.autocast:
            return take_loss(self.training_step(batch, step))
        with torch.autocast(batch.x.device.type, torch.bfloat16):
            return take_loss(self.training_step(batch, step))

    def new_optimizer(self) -> Optimizer:
        """Return what the objective makes."""
        return single_optimizer(self.objective) if self.own is None else self.own.fresh_optimizer()

    def fresh_optimizer(self) -> Optimizer:
        """Return the objective's optimizer without a memory of other clients.

        Where making one anew would make the same again, the last one is reset instead, which takes a third of the time.
        """
        if not self._reusable:
            return self.new_optimizer()
        self.optimizer.state.clear()
        for group, settings in zip(self.optimizer.param_groups, self._groups, strict=True):
            group.update(settings)
        return self.optimizer


class Training:
    """One client's training of one round, from its first step to its update; it lives inside ``Clients.forked``.

    Every draw comes from ``(task.seed, purpose, task.round, task.client_id)``, so the result depends on neither the order of
    clients nor on anything drawn before.
    """

    def __init__(self, clients: "Clients", task: ClientTask) -> None:
        self.clients, self.task, self.program = clients, task, clients.program_of(task.broadcast.model)
        self.indices = clients.owned[task.client_id]
        self.num_steps = clients.num_steps(task)
        self.step, self.num_seen, self.loss_sum = 0, 0, 0.0
        program, local = self.program, clients.local
        program.load(own_model(task.broadcast.model, task.memory) if task.memory else task.broadcast.model)
        program.train(True)
        self.optimizer = program.fresh_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] *= task.lr_factor
        if local.keep_optimizer:
            restore_optimizer(self.optimizer, kept_optimizer(task.memory))
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.batches = clients.batches(task)
        self.private = None if clients.privacy is None else PrivateGradients(program, clients.privacy)
        if program.is_hooked:
            # A dictionary of its own: what it changes there must not be taken for what was there before.
            start = ClientStart(task.broadcast, dict(task.memory), self.num_steps, self.lr, task.lr_factor)
            program.begin(start, clients.data(task.client_id), self.optimizer, local.batch_size)

    def resume(self, half: HalfTrained) -> None:
        """Continue where the same training was put down."""
        for _ in range(half.num_steps):
            next(self.batches)
        self.step, self.num_seen, self.loss_sum = half.num_steps, half.num_seen, half.loss_sum
        self.program.load(half.weights)
        restore_optimizer(self.optimizer, half.optimizer)

    def take_steps(self, stop: int) -> None:
        """Take the steps up to number ``stop``, counted from the client's first."""
        clients, task, program = self.clients, self.task, self.program
        take_step = self.optimizer.step if any(program.step_hooks) or "step" in vars(self.optimizer) else program.bare_step
        losses: list[Tensor] = []  # read at the end: on an accelerator each look at a number waits for all that is under way
        sizes: list[int] = []
        for step, positions in zip(range(self.step, stop), self.batches, strict=False):
            for parameter in self.parameters:
                parameter.grad = None
            try:
                if self.private is None:
                    loss = program.step(clients.batch(self.indices[positions], task, step), step)
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    loss = self._private_backward(self.private, positions, step)
                if clients.local.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(self.parameters, clients.local.max_grad_norm)
                take_step()
            except SkippedStepError:
                continue
            except torch.OutOfMemoryError:
                raise EngineError(
                    f"Client {task.client_id} in round {task.round} does not fit into the memory of {clients.device}: lower "
                    "`local.batch_size`, or choose a smaller `model`."
                ) from None
            except Exception as error:
                where = f"client {task.client_id} in round {task.round}, step {step + 1} of {self.num_steps}"
                error.add_note(f"It happened to {where}.")
                raise
            losses.append(loss.detach())
            sizes.append(len(positions))
        self.step, self.num_seen = stop, self.num_seen + sum(sizes)
        for value, size in zip(torch.stack(losses).tolist() if losses else [], sizes, strict=True):
            self.loss_sum += value * size

    def _private_backward(self, private: PrivateGradients, positions: NDArray[np.int64], step: int) -> Tensor:
        """Leave the gradient of a step of DP-SGD, and return the batch's mean loss."""
        clients, task, num_samples = self.clients, self.task, len(self.indices)
        batch = clients.batch(self.indices[positions], task, step) if len(positions) else None
        draw = rng.stream(clients.noise_seed(task.seed), "gradient-noise", task.round, task.client_id, step)
        return private.backward(batch, min(clients.local.batch_size, num_samples), draw)

    def finish(self) -> ClientUpdate:
        """Return what goes back to the server, on the CPU, its tensors contiguous."""
        program, task = self.program, self.task
        delta = program.moved_from(task.broadcast.model, program.parameters)
        buffers = program.moved_from(task.broadcast.model, program.buffers)
        weight = step_weight_of(self.optimizer, program.objective, self.num_steps)
        extras, memory, logged = State(), State(), dict[str, float]()
        if program.is_hooked:
            ended, data = ClientEnd(delta, self.num_steps, self.lr, weight), self.clients.data(task.client_id)
            extras, memory, logged = program.end(ended, data)
        if program.personal:
            memory = memory | to_keep(program.tensors, program.personal)
        if self.clients.local.keep_optimizer:
            memory = memory | optimizer_to_keep(self.optimizer)
        return ClientUpdate(
            client_id=task.client_id,
            delta=delta,
            buffers=buffers,
            num_samples=len(self.indices),
            num_steps=self.num_steps,
            step_weight=weight,
            metrics={"loss_sum": self.loss_sum, "num_seen": self.num_seen, **logged},
            extras=extras,
            memory=memory,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Clients(Population):
    """The clients of a federation, and the programs that they run.

    Attributes:
        programs: one per objective.
        probed: clients of the current round that have taken their first steps to answer a query.
        draws_elsewhere: whether a part of the user's own may draw from numpy's or Python's global generators.
    """

    programs: list[ClientTrainer] = field(init=False, default_factory=list)
    probed: ProbedClients = field(init=False, default_factory=ProbedClients)
    draws_elsewhere: bool = field(init=False)

    def __post_init__(self) -> None:
        """Look up once what every client's training needs."""
        Population.__post_init__(self)  # `super()` is not there for a dataclass with slots
        parts = [getattr(self.objective, "loss", nn.Identity()), *self.objective.modules()]
        object.__setattr__(self, "draws_elsewhere", not all(map(draws_by_torch, parts)))
        for objective in (self.objective, *self.other_objectives):
            self.programs.append(
                ClientTrainer(objective, precision=self.precision, compile=self.compile, personal=self.personal)
            )

    @property
    def program(self) -> ClientTrainer:
        """The program of the global model's shape."""
        return self.programs[0]

    @property
    def divisible(self) -> bool:
        """Whether any client's training may be put down between two steps, whatever its model's shape."""
        return all(program.divisible for program in self.programs)

    @property
    def facts(self) -> Facts:
        """What a server may know before the first round."""
        program, personal = self.program, self.program.personal
        names, buffers = (
            tuple(name for name in part if name not in personal) for part in (program.parameters, program.buffers)
        )
        model = state.clone(state.travelling(program.module))
        data_digest = fingerprint(self.dataset, whole=self.whole_fingerprint)
        parts = (self.objective, getattr(self.objective, "correction", None))
        kinds = {name: kind for part in parts for name, kind in kinds_sent(part, getattr(part, "provides", ())).items()}
        rest = (data_digest, self.dataset.num_attributes, program.frozen_digest, kinds, self.dataset.num_classes)
        return Facts(self.partition.num_clients, model, names, buffers, personal, *rest, program.derived, self.partition.digest)

    def program_of(self, model: State) -> ClientTrainer:
        """Return the program for models of some shape.

        Raises:
            ValueError: if there is none.
        """
        if len(self.programs) == 1:
            return self.programs[0]
        for program in self.programs:
            tensors = program.tensors
            if tensors.keys() <= model.keys() and all(tensors[name].shape == model[name].shape for name in tensors):
                return program
        raise ValueError(
            f"Expected a model of one of the {len(self.programs)} shapes that clients have a program for, but got another: "
            "add its objective to `other_objectives`."
        )

    def num_steps(self, task: ClientTask) -> int:
        """Return how many optimizer steps a client takes in a round, 1 at least."""
        local, num_samples = self.local, len(self.owned[task.client_id])
        planned = local.amount if local.unit == "steps" else local.amount * -(-num_samples // local.batch_size)
        return max(1, math.ceil(task.step_fraction * planned))

    def batches(self, task: ClientTask) -> Iterator[NDArray[np.int64]]:
        """Yield positions, among the client's samples, of the batches that it trains on, epoch after epoch without end."""
        num_samples, size = len(self.owned[task.client_id]), self.local.batch_size
        replaced = self.local.sampling == "with_replacement"
        if num_samples < 1:
            raise ValueError("Expected a client to hold at least one sample, but it holds none: fix the partition.")
        if self.privacy is not None:
            for step in itertools.count():
                draw = rng.stream(self.noise_seed(task.seed), "private-batches", task.round, task.client_id, step)
                yield self.privacy.batch(draw, num_samples, size)
        if num_samples <= size and not replaced:  # all in one batch, in which they have no order
            yield from itertools.repeat(np.arange(num_samples))
        generator = rng.stream(task.seed, "batches", task.round, task.client_id)
        while True:
            order = generator.integers(num_samples, size=num_samples) if replaced else generator.permutation(num_samples)
            for start in range(0, num_samples, size):
                yield order[start : start + size]

    def batch(self, indices: NDArray[np.int64], task: ClientTask, step: int) -> Batch:
        """Return samples as a client trains on them in a step, augmented where the data set says so."""
        generator = None
        if self.dataset.augmentation is not None:
            generator = rng.stream(task.seed, "augmentation", task.round, task.client_id, step)
        return self.shown.batch(indices, self.device, self.memory_format, generator)

    def train(self, task: ClientTask, begin: Begin = Training) -> ClientUpdate:
        """Run a client's local training and its transforms; ``begin`` makes the training."""
        [update] = self.train_each([task], begin)
        return update

    def train_each(self, tasks: Iterable[ClientTask], begin: Begin = Training) -> Iterator[ClientUpdate]:
        """Yield what ``train`` returns for each task; until the last, global generators are the clients'."""
        with rng.kept(self.device, others=self.draws_elsewhere):
            for task in tasks:
                yield self._trained(task, begin)

    def _trained(self, task: ClientTask, begin: Begin) -> ClientUpdate:
        if self.probed.kept:  # some have taken their first steps already
            return self.train_part(task, None, None, begin)  # type: ignore[return-value]  # nothing stops it
        self._seed(task)
        training = begin(self, task)
        training.take_steps(training.num_steps)
        update = training.finish()
        return self.transformed(update, task) if self.transforms else update

    def train_part(
        self, task: ClientTask, half: HalfTrained | None, stop: int | None, begin: Begin = Training
    ) -> ClientUpdate | HalfTrained:
        """Do a part of what ``train`` does: from where it was put down, or up to step number ``stop``.

        The update is the same bit for bit if the program is ``divisible``, also where another process continues.
        """
        program, others = self.program_of(task.broadcast.model), self.draws_elsewhere
        if half is None and program.divisible:
            half = self.probed.find(task, self.num_steps(task) if stop is None else stop)
        with self.forked(task):
            training = begin(self, task)
            if half is not None:
                training.resume(half)
                rng.set_states(half.generators, self.device, others=others)
            training.take_steps(training.num_steps if stop is None else stop)
            if stop is not None:
                optimizer, generators = training.optimizer.state_dict()["state"], rng.get_states(self.device, others=others)
                weights = state.clone(program.tensors)
                return HalfTrained(stop, weights, optimizer, generators, training.loss_sum, training.num_seen)
            update = training.finish()
        return self.transformed(update, task)

    @contextlib.contextmanager
    def forked(self, task: ClientTask) -> Iterator[None]:
        """Have generators draw the numbers of a client in a round, as it trains, and put them back afterwards."""
        with rng.kept(self.device, others=self.draws_elsewhere):
            self._seed(task)
            yield

    def _seed(self, task: ClientTask) -> None:
        rng.seed_all(rng.torch_seed(task.seed, "train", task.round, task.client_id), self.device, others=self.draws_elsewhere)

"""What runs at a client: it trains, predicts and answers questions. The only place that takes gradient steps (law 3).

``LocalTraining`` says how much a client trains, ``Clients`` has everybody's data, a ``ClientProgram`` is an objective made
ready for one client after another, and ``Training`` is one client's training of one round. They stand in one file, though it is
a long one, because whoever follows a gradient step needs them all.
"""

import contextlib
import difflib
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfacet import rng, state
from fedfacet.builtin import draws_by_torch
from fedfacet.clients.answering import answer
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.divided_training import HalfTrained, train_part
from fedfacet.clients.hooks import ClientHooks, DataHooks, PredictHooks, federated_module
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.optimizers import (
    bare_step_of,
    kept_optimizer,
    optimizer_to_keep,
    restore_optimizer,
    single_optimizer,
)
from fedfacet.clients.personal_memory import own_model, to_keep
from fedfacet.clients.prediction import Predictions, predict
from fedfacet.clients.private_gradients import PrivateGradients
from fedfacet.clients.probed_clients import ProbedClients
from fedfacet.clients.resident_model import ResidentModel
from fedfacet.data.dataset import Dataset
from fedfacet.data.fingerprint import fingerprint
from fedfacet.derived import derived_of, other_names
from fedfacet.errors import EngineError
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, sums_gradients
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.disclosure import kinds_sent
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.transforms import UpdateTransform
from fedfacet.types import (
    Answer,
    Batch,
    ClientEnd,
    ClientStart,
    ClientTask,
    ClientUpdate,
    Facts,
    Partition,
    Query,
    RoundNeeds,
    State,
)

_AVERAGED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""What means are taken of; shorter floats hold what is quantised."""

Begin: TypeAlias = Callable[["Clients", ClientTask], "Training"]
"""Makes a client's training."""


class ClientProgram:
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
        # Lightning advises to hand the module to a Trainer; `check_objective` says what holds here.
        warnings.filterwarnings("ignore", r"You are trying to `self\.log\(\)`")
        self.objective = objective
        self.module = federated_module(objective)
        self.derived = derived_of(self.module)
        self._followers = {name for one in self.derived for name in one.names}
        aliases = other_names(self.derived)
        named: State = dict(self.module.named_parameters(remove_duplicate=False))
        self.frozen: State = {name: tensor for name, tensor in named.items() if not tensor.requires_grad}
        self.parameters: State = {name: named[name] for name in named if name not in self.frozen.keys() | aliases}
        # Where buffers are, not what: a forward pass may put a new tensor in the place of an old one.
        self._places = [
            (f"{prefix}.{key}" if prefix else key, module._buffers, key)
            for prefix, module in self.module.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None and key not in module._non_persistent_buffers_set
        ]
        self._hidden = [
            (module._buffers, key, None if buffer is None else buffer.detach().clone())
            for module in objective.modules()
            for key, buffer in module._buffers.items()
            if key in module._non_persistent_buffers_set
        ]
        self._hooks = objective if isinstance(objective, ClientHooks) else None
        self._hooks_are_plain = all(
            getattr(type(objective), hook, None) is getattr(ClassificationObjective, hook)
            for hook in ("on_client_start", "on_client_end")
        )
        self.data_hooks = objective if isinstance(objective, DataHooks) else None
        self.predict_hooks = objective if isinstance(objective, PredictHooks) else None
        on_cpu = all(tensor.device.type == "cpu" for tensor in self.tensors.values())
        self.resident = None if on_cpu else ResidentModel(self.tensors)
        self.autocast = precision == "bf16-mixed"
        self.personal = personal - self.frozen.keys()
        self._training: bool | None = None
        self.optimizer = single_optimizer(objective)
        self._check_names()
        # Somebody else's class of optimizer may keep more than its `state`, which is what is reset.
        self._reusable = type(self.optimizer).__module__.startswith(("torch.optim.", "fedfacet.")) and getattr(
            objective, "optimizer_is_fixed", False
        )
        self.bare_step, self.step_hooks = bare_step_of(self.optimizer)
        self.step_hooks = self.step_hooks if self._reusable else (True,)  # or each client has an optimizer of its own
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        if compile:
            on_gpu = any(parameter.is_cuda for parameter in self.module.parameters())
            self.module.compile(mode="reduce-overhead" if on_gpu else None)
            if on_gpu:  # the next replay of a CUDA graph overwrites what this one returned, and predictions are kept
                replay = self.module._compiled_call_impl
                self.module._compiled_call_impl = lambda *x, **more: replay(*x, **more).clone()  # type: ignore[misc]

    def _check_names(self) -> None:
        """Refuse what would not be there: parameters that are learnt but not sent, and layers to keep that do not exist.

        Raises:
            ValueError: naming it.
        """
        name, own = type(self.objective).__name__, set(map(id, self.objective.parameters()))
        for parameter in (parameter for group in self.optimizer.param_groups for parameter in group["params"]):
            if id(parameter) not in own:
                raise ValueError(
                    f"Expected the optimizer of {name} to have the module's own parameters, which are sent and saved, but it "
                    f"has another one, of shape {tuple(parameter.shape)}: make it an attribute of the module."
                )
        known = [*self.tensors, *self.frozen, *self._followers]
        if unknown := sorted(self.personal - set(known)):
            alike = [one for one in known if one.startswith(f"{unknown[0]}.")] or difflib.get_close_matches(unknown[0], known)
            told = ", ".join(map(repr, alike or known[:6]))
            raise ValueError(f"Expected `personal` to name tensors of the model, but got {unknown[0]!r}: name some of {told}.")
        for one in self.derived:
            together = [one.source, *one.names]
            stays = [name for name in together if name in self.personal]
            if one.source not in self.frozen and 0 < len(stays) < len(together):
                sent = next(name for name in together if name not in self.personal)
                raise ValueError(
                    f"Expected `personal` to name both or neither of {stays[0]!r} and {sent!r}, which are one tensor or follow "
                    "from each other, but only the first stays with the client: name both, or untie them."
                )

    @property
    def tensors(self) -> State:
        """The module's trained parameters and its buffers; frozen parameters are everybody's own and stay as they are."""
        return self.parameters | self._persistent_buffers if self._places else self.parameters

    @property
    def buffers(self) -> State:
        """The floating-point ones among the buffers, unless they follow from weights."""
        named = self._persistent_buffers.items() if self._places else ()
        return {name: buffer for name, buffer in named if buffer.dtype in _AVERAGED and name not in self._followers}

    @property
    def hooks(self) -> ClientHooks | None:
        """The objective, if it has hooks that do anything; without a correction those of a classifier do not."""
        return None if self._hooks_are_plain and self.objective.correction is None else self._hooks

    @functools.cached_property
    def frozen_digest(self) -> str:
        """The sha256 of the parameters that nobody trains; empty without any."""
        return state.digest(self.frozen) if self.frozen else ""

    @property
    def _persistent_buffers(self) -> State:
        return {name: tensor for name, of_module, key in self._places if (tensor := of_module[key]) is not None}

    @property
    def hides_buffers(self) -> bool:
        """Whether some buffers are in no state dict, so that they cannot be carried elsewhere."""
        return bool(self._hidden)

    @property
    def divisible(self) -> bool:
        """Whether a client's training may be put down between two steps and taken up elsewhere."""
        persistent = {name for name, _, _ in self._places}
        return all(name in persistent for name, _ in self.module.named_buffers()) and bool(
            getattr(self.objective, "divisible", False)
        )

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

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Evaluate for a while, without gradients, and train again afterwards."""
        self.train(False)
        with torch.no_grad():
            yield
        self.train(True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the client's model."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast):
            return self.module(x) if self.predict_hooks is None else self.objective(x)  # type: ignore[no-any-return]

    def step(self, batch: Batch, step: int) -> Tensor:
        """Return the loss of one training step."""
        if not self.autocast:
            return take_loss(self.objective.training_step(batch, step))
        with torch.autocast(batch.x.device.type, torch.bfloat16):
            return take_loss(self.objective.training_step(batch, step))

    def fresh_optimizer(self) -> Optimizer:
        """Return the objective's optimizer without a memory of other clients.

        Where making one anew would make the same again, the last one is reset instead, which takes a third of the time.
        """
        if not self._reusable:
            return single_optimizer(self.objective)
        self.optimizer.state.clear()
        for group, settings in zip(self.optimizer.param_groups, self._groups, strict=True):
            group.update(settings)
        return self.optimizer

    def lend(self) -> nn.Module:
        """Return the module to somebody who may do with it what they like."""
        self._training = None
        return self.module

    def take_back(self) -> None:
        """Train again what is trained, whatever somebody froze; weights and the mode are set anew anyway.

        Raises:
            ValueError: if the module has other parameters now, which would not be trained.
        """
        named: State = dict(self.module.named_parameters(remove_duplicate=False))
        for name, tensor in (self.parameters | self.frozen).items():
            if named.get(name) is not tensor:
                raise ValueError(
                    f"Expected a model with the parameters that it was lent with, but {name!r} is another one or gone: change "
                    "`copy.deepcopy(context.model)`."
                )
            tensor.requires_grad_(name in self.parameters)


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
        self.hooks = program.hooks
        if self.hooks is not None:
            # A dictionary of its own: what it changes there must not be taken for what was there before.
            start = ClientStart(task.broadcast, dict(task.memory), self.num_steps, self.lr, task.lr_factor)
            self.hooks.on_client_start(start)
        if program.data_hooks is not None:
            with program.looking():
                program.data_hooks.before_steps(clients.data(task.client_id).batches(), self.num_steps)

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
            except torch.OutOfMemoryError:
                raise _too_large(task, clients.device) from None
            except Exception as error:
                where = f"client {task.client_id} in round {task.round}, step {step + 1} of {self.num_steps}"
                error.add_note(f"It happened to {where}.")
                raise
            losses.append(loss.detach())
            sizes.append(len(positions))
        self.step, self.num_seen = stop, self.num_seen + sum(sizes)
        for value, size in zip(torch.stack(losses).tolist() if stop > 1 else [losses[0].item()], sizes, strict=True):
            self.loss_sum += value * size

    def _private_backward(self, private: PrivateGradients, positions: NDArray[np.int64], step: int) -> Tensor:
        """Leave the gradient of a step of DP-SGD, and return the batch's mean loss."""
        clients, task, num_samples = self.clients, self.task, len(self.indices)
        batch = clients.batch(self.indices[positions], task, step) if len(positions) else None
        draw = rng.stream(clients.noise_seed(task.seed), "gradient-noise", task.round, task.client_id, step)
        return private.backward(batch, min(clients.local.batch_size, num_samples), draw)

    def finish(self) -> ClientUpdate:
        """Return what goes back to the server, on the CPU, its tensors contiguous."""
        program, task, local = self.program, self.task, self.clients.local
        delta = program.moved_from(task.broadcast.model, program.parameters)
        buffers = program.moved_from(task.broadcast.model, program.buffers)
        if program.data_hooks is not None:
            with program.looking():
                program.data_hooks.after_steps(self.clients.data(task.client_id).batches())
        weight = step_weight_of(self.optimizer, program.objective, self.num_steps)
        extras, memory = State(), State()
        if self.hooks is not None:
            extras, memory = self.hooks.on_client_end(ClientEnd(delta, self.num_steps, self.lr, weight))
        if program.personal:
            memory = memory | to_keep(program.tensors, program.personal)
        if local.keep_optimizer:
            memory = memory | optimizer_to_keep(self.optimizer)
        return ClientUpdate(
            client_id=task.client_id,
            delta=delta,
            buffers=buffers,
            num_samples=len(self.indices),
            num_steps=self.num_steps,
            step_weight=weight,
            metrics={"loss_sum": self.loss_sum, "num_seen": self.num_seen},
            extras=extras,
            memory=memory,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """The clients of a federation: their data, and the programs that they run.

    Attributes:
        objective: the LightningModule that clients train; one object, used for one client after another.
        optimizer: makes the clients' optimizers, for queries that train something.
        dataset: holds all samples.
        partition: who owns which, of those that take part.
        local: how much a client trains in a round.
        transforms: what happens to an update before it leaves the client, in this order.
        device: where all this happens.
        memory_format: of images in a batch and of the objective's weights.
        precision: as in ``ClientProgram``.
        compile: as in ``ClientProgram``.
        personal: as in ``ClientProgram``.
        other_objectives: of models of other shapes, for an aggregator that sends such models to some clients.
        whole_fingerprint: whether the data set's digest looks at every input.
        privacy: how gradients are made private; ``None`` where they are not.
        server_privacy: how the server makes models private, whose key the noise on answers has too; ``None`` where it does not.
        hides_attributes: whether clients do not know the attributes of their samples.
        held_out: clients that never take part and only measure, numbered after the others; ``None`` for none.
        local_holdout: per client what it never trains on; ``None`` for nothing.
        needs: what a round takes on each client's device; empty without devices.
        owned: per client the positions of what it trains on, those of held-out clients last.
        shown: the data set as clients see it, with the labels that they take for true.
        programs: one per objective.
        probed: clients of the current round that have taken their first steps to answer a query.
        draws_elsewhere: whether a part of the user's own may draw from numpy's or Python's global generators.
    """

    objective: L.LightningModule
    optimizer: OptimizerFactory
    dataset: Dataset
    partition: Partition
    local: LocalTraining
    transforms: Sequence[UpdateTransform]
    device: torch.device
    memory_format: torch.memory_format = torch.contiguous_format
    precision: str = "32-true"
    compile: bool = False
    personal: Set[str] = frozenset()
    other_objectives: Sequence[L.LightningModule] = ()
    whole_fingerprint: bool = False
    privacy: DPSGD | None = None
    server_privacy: Privacy | None = None
    hides_attributes: bool = False
    held_out: Partition | None = None
    local_holdout: Partition | None = None
    needs: list[RoundNeeds] = field(default_factory=list)
    owned: Sequence[NDArray[np.int64]] = field(init=False)
    shown: Dataset = field(init=False)
    programs: list[ClientProgram] = field(init=False, default_factory=list)
    probed: ProbedClients = field(init=False, default_factory=ProbedClients)
    draws_elsewhere: bool = field(init=False)

    def __post_init__(self) -> None:
        """Look up once what every client's training needs."""
        held_out = self.held_out.indices if self.held_out is not None else ()
        object.__setattr__(self, "owned", (*self.partition.indices, *held_out))
        shown = self.dataset.without_attributes if self.hides_attributes else self.dataset
        object.__setattr__(self, "shown", self._relabelled(shown))
        parts = [getattr(self.objective, "loss", nn.Identity()), *self.objective.modules()]
        object.__setattr__(self, "draws_elsewhere", not all(map(draws_by_torch, parts)))
        for objective in (self.objective, *self.other_objectives):
            self.programs.append(
                ClientProgram(objective, precision=self.precision, compile=self.compile, personal=self.personal)
            )

    @property
    def program(self) -> ClientProgram:
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
        sent = [tuple(name for name in part if name not in personal) for part in (program.parameters, program.buffers)]
        model = state.clone(state.travelling(program.module))
        data_digest = fingerprint(self.dataset, whole=self.whole_fingerprint)
        parts = (self.objective, getattr(self.objective, "correction", None))
        kinds = {name: kind for part in parts for name, kind in kinds_sent(part, getattr(part, "gives", ())).items()}
        told = (data_digest, self.dataset.num_attributes, program.frozen_digest, kinds, self.dataset.num_classes)
        more = (*told, program.derived, self.partition.digest)
        return Facts(self.partition.num_clients, model, sent[0], sent[1], personal, *more)

    def program_of(self, model: State) -> ClientProgram:
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

    def data(self, client_id: int) -> ClientData:
        """Return one client's samples."""
        return ClientData(self.shown, self.owned[client_id], self.device, self.memory_format)

    def held_out_by(self, client_id: int) -> NDArray[np.int64]:
        """Return the positions of what a client that takes part never trains on."""
        return np.empty(0, np.int64) if self.local_holdout is None else self.local_holdout.indices[client_id]

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

    def noise_seed(self, seed: int) -> int:
        """Return what a client's noise is drawn from: the run's seed, mixed with the noise key where there is one."""
        privacy = self.privacy or self.server_privacy
        return seed if privacy is None else privacy.seed(seed)

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
            return train_part(self, begin, task, None, None)  # type: ignore[return-value]  # nothing stops it
        self._seed(task)
        training = begin(self, task)
        training.take_steps(training.num_steps)
        update = training.finish()
        return self.transformed(update, task) if self.transforms else update

    def train_part(self, task: ClientTask, half: HalfTrained | None, stop: int | None) -> ClientUpdate | HalfTrained:
        """Do a part of what ``train`` does: from where it was put down, or up to step number ``stop``."""
        return train_part(self, Training, task, half, stop)

    def answer(self, query: Query, task: ClientTask) -> Answer:
        """Have a client answer a query on the model that it was sent."""
        return answer(self, query, task)

    def predict(self, model: State, splits: Iterable[NDArray[np.int64]], memory: State | None = None) -> Predictions:
        """Return what a model says of some samples of the data set; with a memory, what the client who keeps it would say."""
        return predict(self, model, splits, memory or {})

    @contextlib.contextmanager
    def forked(self, task: ClientTask) -> Iterator[None]:
        """Have generators draw the numbers of a client in a round, as it trains, and put them back afterwards."""
        with rng.kept(self.device, others=self.draws_elsewhere):
            self._seed(task)
            yield

    def _seed(self, task: ClientTask) -> None:
        rng.seed_all(rng.torch_seed(task.seed, "train", task.round, task.client_id), self.device, others=self.draws_elsewhere)

    def _relabelled(self, dataset: Dataset) -> Dataset:
        """Return a data set with the labels that clients take for true."""
        for relabel in (transform.relabelled for transform in self.transforms if transform.relabelled is not None):
            y = dataset.y.copy()
            for client_id, samples in enumerate(self.partition.indices):
                y[samples] = relabel(client_id, y[samples], dataset.num_classes)
            dataset = replace(dataset, y=y)
        return dataset

    def transformed(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Apply what happens to an update before it leaves the client."""
        for position, transform in enumerate(self.transforms):
            generator = rng.stream(task.seed, "transform", task.round, task.client_id, position)
            update = transform.consider(transform.apply(update, generator), task)
        return update


def _too_large(task: ClientTask, device: torch.device) -> EngineError:
    return EngineError(
        f"Client {task.client_id} in round {task.round} does not fit into the memory of {device}: lower `local.batch_size`, or "
        "choose a smaller `model`."
    )


def step_weight_of(optimizer: Optimizer, objective: L.LightningModule, num_steps: int) -> float:
    """Return ||a_k||_1, the sum of the absolute weights that a client's gradients have in its update, per learning rate.

    Source: FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481), section 4. SGD with momentum rho and a correction of constant
    curvature mu (a proximal term, say) is linear in its gradients: a gradient's weight is how far it alone has moved the
    weights by the last step. Weights may be negative (an oscillation, where lr mu > (1 - sqrt(rho))^2). Other optimizers count
    their steps, and a velocity that a client kept from former rounds counts for nothing.
    """
    group = optimizer.param_groups[0]
    if not sums_gradients(optimizer):
        return float(num_steps)
    mu = getattr(objective, "curvature", 0.0)
    velocity = walked = total = 0.0
    for step in range(num_steps):
        if mu == 0:  # no weight is negative: their sum is where gradients of 1 lead
            velocity = group["momentum"] * velocity + 1
            walked = total = walked + velocity
        else:
            velocity = group["momentum"] * velocity + (step == 0) - group["lr"] * mu * walked
            walked += velocity
            total += abs(walked)
    return total


def take_loss(output: object) -> Tensor:
    """Return the loss out of what a ``training_step`` returned: a tensor, or a mapping with the key ``loss``."""
    loss = output.get("loss") if not isinstance(output, Tensor) and isinstance(output, Mapping) else output
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    came = f"a tensor of shape {tuple(loss.shape)}: take its mean" if isinstance(loss, Tensor) else type(loss).__name__
    raise ValueError(f"Expected `training_step` to return a loss, which is one number, but got {came}.")

"""What clients run on: simulated devices with a clock, parts of the model, a device of torch, and what they log."""

import logging
import math
import os
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.capacities import Capacity
from fedfacet.clients.trainer import Clients
from fedfacet.clock import Clock
from fedfacet.derived import other_names
from fedfacet.devices.base import Devices
from fedfacet.devices.schedule import Work
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.logged_values import LoggedValues
from fedfacet.submodels.base import Submodel
from fedfacet.submodels.parts import Parts
from fedfacet.types import ChannelPlan, Partition

log = logging.getLogger(__name__)

_OF_THE_ROUND = frozenset({"loss", "num_steps"})
"""What a round measures of training itself, so that a module's own is marked."""


def clock_of(devices: Devices, clients: Clients, aggregator: Aggregator, cohort_size: int) -> Clock:
    """Return the clock of clients' devices.

    Raises:
        ConfigError: if the deadline is too early for everybody.
        ValueError: if the devices have impossible numbers.
    """
    facts, local = clients.facts, clients.local
    extras = state.num_floats(aggregator.extras(facts))
    sent = {name: facts.model[name] for name in (*facts.parameters, *facts.buffers)}
    profiles = devices.profiles(clients.partition.num_clients)
    for transform in clients.transforms:
        if transform.on_lines is not None:
            profiles = replace(profiles, up=transform.on_lines(profiles.up))
    return Clock(
        devices,
        [
            Work(n, local.batch_size, local.amount if local.unit == "steps" else local.amount * math.ceil(n / local.batch_size))
            for n in map(len, clients.partition.indices)
        ],
        floats_down=state.num_floats({name: facts.model[name] for name in facts.model.keys() - other_names(facts.derived)}),
        floats_up=state.num_floats(sent) + extras,
        cohort_size=cohort_size,
        profiles=profiles,
    )


def parts_of(
    capacity: Capacity | None, submodel: Submodel | None, model: nn.Module, partition: Partition, seed: int
) -> Parts | None:
    """Return which part of a model each client holds; ``None`` where everybody holds all of it.

    Raises:
        ConfigError: if only one of capacity and submodel is there, or if the model does not say which channels it has.
        ValueError: if the capacity does not suit the clients.
    """
    if capacity is None and submodel is None:
        return None
    if capacity is None or submodel is None:
        there, missing = ("submodel", "capacity") if capacity is None else ("capacity", "submodel")
        raise ConfigError(
            f"Expected `capacity` and `submodel` together, but got {there} alone: choose a {missing} other than whole (such as "
            f"{'capacity=largest' if missing == 'capacity' else 'submodel=heterofl'}), or {there}=whole."
        )
    plan = getattr(model, "channel_plan", None)
    if not isinstance(plan, ChannelPlan):
        raise ConfigError(
            f"Expected a model that can be cut, with `channel_plan` and `narrowed`, but {type(model).__name__} has none: "
            "choose scaler_cnn, small_cnn or resnet8, or capacity=whole submodel=whole."
        )
    parts = Parts(submodel, capacity, plan, np.array(list(map(len, partition.indices))), seed)
    return None if not capacity.every_round and bool((parts.rates(1) == 1).all()) else parts


def smaller_models(parts: Parts | None, model: nn.Module) -> list[nn.Module]:
    """Return a model for each shape that weak clients hold."""
    if parts is None:
        return []
    sizes = [parts.sizes(rate) for rate in parts.levels]
    different = [one for number, one in enumerate(sizes) if one not in sizes[:number] and one != dict(parts.plan.sizes)]
    return [model.narrowed(one) for one in different]  # type: ignore[operator]


def device_of(name: str) -> torch.device:
    """Return a device of this machine by its name; ``"auto"`` is an accelerator if there is one.

    Raises:
        ConfigError: if the machine has no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Expected `engine.device` to name a device of this machine, but got {name!r} ({str(error).splitlines()[0]}): give "
            "auto, cpu, cuda or cuda:N."
        ) from None
    return device


def usual_memory_format(device: torch.device) -> str:
    """Return where the channels of images lie: last on a CPU, whose convolutions are 1.2 to 1.6 times as fast so (measured)."""
    return "channels_last" if device.type == "cpu" else "contiguous_format"


def be_deterministic(device: torch.device, deterministic: bool = True) -> None:
    """Have an accelerator give the same numbers each time; a CPU does so by itself."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(deterministic)
        # Or every new tensor costs a kernel more; nothing here reads what nobody wrote.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def logged_values(clients: Clients, *, is_private: bool) -> list[LoggedValues]:
    """Return the mechanism that keeps what clients log while they train, if they log anything.

    Args:
        clients: whose module was tried.
        is_private: whether clients may send nothing but noisy or allowed values, so that what they log is left out.
    """
    own = clients.program.own
    if own is None or not own.logged.train_names:
        return []
    if is_private:
        log.warning(
            "What %s.training_step gives to self.log is left out, as privacy or disclosure does not cover it.",
            type(clients.objective).__name__,
        )
        return []
    names = own.logged.train_names
    return [LoggedValues({f"train/{'module_' if name in _OF_THE_ROUND else ''}{name}": name for name in names})]

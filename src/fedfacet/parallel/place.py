"""Which of a run's processes this one is, as torchrun or SLURM wrote it into the environment."""

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from fedfacet.errors import ConfigError


class Place(NamedTuple):
    """Which of a run's processes this is: rank 0 drives the run, the others serve.

    ``local_rank`` is among the ``num_local_ranks`` of this machine. ``environment`` is what Lightning knows of whoever started
    the processes; ``None`` where there is only this one.
    """

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1
    environment: ClusterEnvironment | None = None


def find_place() -> Place:
    """Return this process's place, as torchrun or SLURM's ``srun`` wrote it into the environment.

    Raises:
        ConfigError: if what SLURM was asked for does not fit together.
    """
    try:
        if TorchElasticEnvironment.detect():
            environment: ClusterEnvironment = TorchElasticEnvironment()
            num_local = int(os.environ["LOCAL_WORLD_SIZE"])
        elif "SLURM_NTASKS" in os.environ and SLURMEnvironment.detect():  # which warns where nobody asked for SLURM
            environment = SLURMEnvironment()
            num_local = environment.world_size() // int(os.environ.get("SLURM_NNODES", "1"))
        else:
            return Place()
    except RuntimeError as error:
        raise ConfigError(f"Expected SLURM settings that start one task per rank, but got this: {error}") from None
    if environment.world_size() == 1:
        return Place()
    return Place(environment.global_rank(), environment.world_size(), environment.local_rank(), num_local, environment)


def machine() -> str:
    """Return what two processes have in common that see each other's memory: the host, its start, and its process numbers."""
    name = [socket.gethostname()]
    with contextlib.suppress(OSError):  # where there is no /proc, or another one in a container
        name += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(name)

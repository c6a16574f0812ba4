"""Which process of a run this is; what they say to each other is in ``tests/engines/test_distributed.py``."""

import pytest

from fedfacet.errors import ConfigError
from fedfacet.parallel.place import find_place

TORCHRUN = {"TORCHELASTIC_RUN_ID": "run", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_JOB_NAME": "train",
}  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    """Return a function that sets environment variables for a test."""

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_the_place_is_read_from_the_environment(environment, variables):
    environment(variables)
    assert find_place()[:4] == (5, 8, 1, 4)


@pytest.mark.parametrize(
    "variables",
    [{}, SRUN | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, SRUN | {"SLURM_JOB_NAME": "bash"}],
    ids=["python", "one task", "a shell of SLURM's"],
)
def test_without_other_processes_it_is_rank_0_of_1(environment, variables):
    environment(variables)
    assert find_place() == (0, 1, 0, 1, None)


def test_slurm_settings_that_lightning_refuses_are_named(environment):
    environment({name: value for name, value in SRUN.items() if name != "SLURM_NTASKS_PER_NODE"})
    with pytest.raises(ConfigError, match="--ntasks-per-node=8"):
        find_place()

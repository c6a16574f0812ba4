"""What stops a run is a sentence with what to do; an unknown error stays as it is."""

import errno

import pytest
import torch
from omegaconf import OmegaConf

from fedfacet.runs.ending import Refused, ending_in_a_sentence
from fedfacet.runs.job import Job


@pytest.fixture
def job(tmp_path):
    return Job(OmegaConf.create({"choices": {"sweep": None}}), tmp_path / "run", [])


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "full"), "Expected free disk space"),
        (chained(RuntimeError("write failed"), OSError(errno.EDQUOT, "quota")), "Expected free disk space"),
        (MemoryError(), "Expected enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "Expected enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), "Expected enough memory"),
        (RuntimeError("a worker failed:\nMemoryError"), "Expected enough memory"),
    ],
)
def test_what_is_used_up_is_named(job, error, said, capsys):
    job.run_dir.mkdir()
    with pytest.raises(Refused, match=said), ending_in_a_sentence(job):
        raise error
    assert capsys.readouterr().err.startswith(f"error: {said} for {job.run_dir}, but there is none left: ")


def test_a_folder_that_is_gone_is_named(job):
    with pytest.raises(Refused, match="was removed while the run went on"), ending_in_a_sentence(job):
        raise FileNotFoundError


def test_another_error_stays_as_it_is(job):
    job.run_dir.mkdir()
    with pytest.raises(ZeroDivisionError), ending_in_a_sentence(job):
        raise ZeroDivisionError

"""More threads than cores are told."""

import logging

import pytest
import torch

from fedfacet.cores import crowded


@pytest.fixture
def threads():
    """Return torch's own way to set its threads, which are put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("processes", "number", "cores", "told"),
    [(2, 2, 2, True), (2, 2, 4, False), (8, 1, 2, False), (1, 2, 2, False), (1, 3, 2, True)],
)
def test_processes_of_one_thread_and_those_that_fit_are_let_be(caplog, threads, processes, number, cores, told):
    threads(number)
    with caplog.at_level(logging.WARNING):
        assert crowded(processes, cores, "take fewer") is told
    assert caplog.messages == told * [
        f"{processes} processes of {number} threads share {cores} cores, and will wait for each other more than they work: "
        "take fewer."
    ]

"""Train a federation: ``python src/train.py [group=option] [key=value] ...``; the README shows how."""

from functools import partial
from typing import TYPE_CHECKING

from fedfacet.__main__ import run_jobs
from fedfacet.entry import enter

if TYPE_CHECKING:
    from fedfacet.runs.job import Job


def train(job: "Job") -> None:
    """Run one job in its run folder, or go on with it."""
    from fedfacet.runs.open_run import open_run  # torch and lightning load here, so that --help need not wait for them

    with open_run(job) as federation:
        federation.fit()


if __name__ == "__main__":
    enter(partial(run_jobs, train), tells=False)

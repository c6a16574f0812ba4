"""Train a federation: ``python src/train.py [group=option] [key=value] ...``; the README shows how."""

from typing import TYPE_CHECKING

from fedfacet.entry import enter
from fedfacet.waiting import waiting

if TYPE_CHECKING:
    from fedfacet.runs.job import Job


def train(job: "Job") -> None:
    """Run one job in its run folder, or go on with it."""
    from fedfacet.runs.opened import opened  # torch and lightning load here, so that --help need not wait for them

    with opened(job) as federation:
        federation.fit()


def main() -> None:
    """Run all jobs of the command line."""
    with waiting("fedfacet starts"):  # before Hydra loads
        from fedfacet.runs.command import run_command
    run_command(train)


if __name__ == "__main__":
    enter(main, tells=False)

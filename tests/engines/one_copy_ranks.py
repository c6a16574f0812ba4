"""Four ranks of a run, which hold one copy of what they load; ``test_distributed.py`` starts this script.

They are told that ranks 0 and 1 are on one machine, 2 and 3 on another. Each loads four times: something that can be shared,
something that cannot be pickled, something for which there is no shared memory, and something at which rank 2 dies.
"""

import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch

from fedfacet.engines.distributed import DistributedEngine

NUM_RANKS = 4
MACHINES = ["here", "here", "there", "there"]


def loads(made, value):
    """A function that makes a value and says so."""

    def load():
        made.append(True)
        return value()

    return load


def samples():
    return {"x": torch.arange(1 << 16), "y": np.arange(1 << 16), "name": "samples"}


def die():
    os._exit(9)


def drive(rank):
    """What every rank does, and what it finds."""
    engine = DistributedEngine(device="cpu", timeout_seconds=60)
    given = engine.share("settings" if rank == 0 else None)
    ranks = engine._join()
    found = {"given": given, "same_machine": len(set(ranks.machines)) == 1}
    ranks.machines = MACHINES
    made = []
    value = engine.one_copy(loads(made, samples))
    value["x"][rank % 2] = -1 - rank  # both of a machine see what both write
    Path(f"written-{rank}").touch()
    while not all(Path(f"written-{other}").exists() for other in range(NUM_RANKS)):
        time.sleep(0.01)
    found |= {"name": value["name"], "x": value["x"][:4].tolist(), "y": int(value["y"].sum()), "made": [len(made)]}
    made.clear()
    engine.one_copy(loads(made, lambda: (torch.zeros(1 << 16), lambda: None)))
    found["made"].append(len(made))
    made.clear()
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, allowed[1]))  # as `ulimit -f` does
    engine.one_copy(loads(made, samples))
    resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    found["made"].append(len(made))
    made.clear()
    engine.one_copy(loads(made, die if rank == 2 else samples))
    found["made"].append(len(made))
    return found


def main():
    torch.set_num_threads(1)
    from two_ranks import announce  # beside this script; not found where pytest looks for doctests

    announce("one_copy_ranks", NUM_RANKS)
    rank = next((rank for rank in range(1, NUM_RANKS) if not os.fork()), 0)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    Path(f"rank-{rank}.json").write_text(json.dumps(drive(rank)))
    if rank:
        os._exit(0)
    ends = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(1, NUM_RANKS))
    told = [json.loads(file.read_text()) for file in sorted(Path().glob("rank-*.json"))]
    Path("found.json").write_text(json.dumps({"ranks": told, "ends": ends}))


if __name__ == "__main__":
    main()

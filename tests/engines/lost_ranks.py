"""Five ranks of a run, some of which die at moments that a kill seldom hits; ``test_distributed.py`` starts this script.

Rank 1 dies before it hands the model on to ranks 3 and 4, rank 2 while the ranks' sums become one, rank 3 while it predicts.
"""

import json
import os
from pathlib import Path

import numpy as np
import torch

from fedfacet import state
from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.engines.distributed import DistributedEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.parallel import worker
from fedfacet.parallel.ranks import Ranks
from fedfacet.types import Broadcast, ClientTask

NUM_RANKS = 5


def die(*_, **__):
    os._exit(9)


def federation():
    overrides = ["experiment=digits_gsc", "model.width=2", "local.unit=steps", "local.amount=2", "engine=distributed"]
    config, _ = compose_job("train", [*overrides, "engine.sums=tree", "engine.timeout_seconds=60", "engine.device=cpu"])
    config.logger = config.callbacks = {}
    return build(config, Path())


def digest(engine, tasks):
    """What is left of the updates, and the digest of their mean along the tree."""
    from two_ranks import facts  # beside this script; not found where pytest looks for doctests

    left = facts(engine.run(tasks))
    return [left, *map(state.digest, engine.total().mean())]


def drive(run, tasks, alone):
    engine, clients = run.engine, run.engine.clients
    indices = np.arange(len(clients.dataset.y))
    sequential = SequentialEngine(device="cpu")
    sequential.setup(clients)
    living = []

    def noted(result):
        living.append(engine._ranks.others)
        return result

    engine.share("begin")
    found = {"sums": [alone] + [noted(digest(engine, tasks)) for _ in range(3)]}
    found["counts"] = [repr(one.evaluate(run.state.model, [indices])) for one in (sequential, engine)]
    noted(None)
    found["sums"].append(noted(digest(engine, tasks)))
    engine.close()
    return found | {"living": living}


def main():
    torch.set_num_threads(1)
    alone = federation()
    model = alone.state.model
    tasks = [ClientTask(client, 2, 0, Broadcast(model)) for client in (5, 3, 9, 0, 17, 8, 2, 11, 12, 20, 4)]
    expected = digest(alone.engine, tasks)
    from two_ranks import announce  # beside this script; not found where pytest looks for doctests

    announce("lost_ranks", NUM_RANKS)
    rank = next((rank for rank in range(1, NUM_RANKS) if not os.fork()), 0)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    run = federation()
    if rank == 0:
        Path("found.json").write_text(json.dumps(drive(run, tasks, expected)))
        return
    if rank == 1:
        Ranks._relayed = lambda self, common: die() if common.manifest.num_bytes else torch.empty(0, dtype=torch.uint8)
    if rank == 2:
        DistributedEngine._combine = die
    if rank == 3:
        worker.predict = die
    run.engine.share()
    run.engine.serve()
    os._exit(0)


if __name__ == "__main__":
    main()

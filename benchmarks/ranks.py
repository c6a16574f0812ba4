"""Seconds that rank 0 works per round of many ranks with a large model, with both orders of sums.

    python benchmarks/ranks.py --ranks 64 --mb 200 --rounds 3

Two processes exchange what rank 0 of such a run sends and receives, through the code of the engine. The second process plays
all other ranks and sends the same update again and again. No model is trained, so what is left is rank 0's part: it packs the
model and sends it to two ranks, receives what the ranks send, checks it, adds it up, and makes the next model.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fedfacet import state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.mechanisms.updates import checked
from fedfacet.parallel import wire
from fedfacet.parallel.messages import Message, Sum, Work
from fedfacet.parallel.place import find_place
from fedfacet.parallel.ranks import Ranks
from fedfacet.parallel.sums import Weighed
from fedfacet.types import Broadcast, ClientTask, ClientUpdate, Facts, State

TENSORS = 160  # as many as MobileNetV2 has, so that none is too large for a cache by itself


def drive(ranks: Ranks, model: State, num_ranks: int, sums: str) -> State:
    """Do rank 0's part of a round, and return the next model."""
    for _ in range(min(2, num_ranks - 1)):  # the ranks that it sends the model to, which hand it on
        ranks.send({1: Message(Work())}, [model])
    facts, task = Facts(num_ranks, model, tuple(model)), ClientTask(0, 1, 0, Broadcast(model))

    def updates() -> Iterator[ClientUpdate]:
        if sums == "tree":
            part, bundles = ranks.receive(1)
            delta, buffers = Weighed(part.weight, bundles, is_own=True).mean()
            yield ClientUpdate(-1, delta, buffers, 1, 1, 1.0, {})
            return
        for _ in range(num_ranks):
            numbers, bundles = ranks.receive(1)
            update = wire.unpack_update(numbers, bundles)
            assert checked(update, task, facts, {}, {})[0] is None
            yield update

    return FedAvg().aggregate({}, model, updates())[1]


def serve(ranks: Ranks, num_ranks: int, sums: str) -> None:
    """Send what the other ranks would."""
    for _ in range(min(2, num_ranks - 1)):
        _, (model,) = ranks.receive(0)
    metrics = {"loss_sum": 1.0, "num_seen": 1}
    update = Message(*wire.pack_update(ClientUpdate(0, model, {}, 1, 1, 1.0, metrics)))
    messages = [Message(Sum(float(num_ranks), frozenset()), [model, {}])] if sums == "tree" else [update] * num_ranks
    for message in messages:
        for work, _ in ranks._start(0, message):  # one at a time, so that it needs the memory of one
            work.wait()


def main() -> None:
    """Time the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ["TORCHELASTIC_RUN_ID"] = "benchmark"
    child = os.fork()
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
    torch.set_num_threads(1)
    ranks = Ranks(find_place(), "gloo", "cpu", 600)
    if not child:
        for sums in ("cohort", "tree"):
            for _ in range(given.rounds):
                serve(ranks, given.ranks, sums)
        os._exit(0)
    size = given.mb * 1_000_000 // (4 * TENSORS)
    print(f"{given.ranks} ranks, {given.mb} MB, torch {torch.__version__}, {os.cpu_count()} cores")
    print("| engine.sums | round | seconds | seconds of CPU |\n|---|---:|---:|---:|")
    for sums in ("cohort", "tree"):
        model = {f"layer{number}": torch.full((size,), 1e-9) for number in range(TENSORS)}
        for number in range(1, given.rounds + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            model = drive(ranks, model, given.ranks, sums)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"| {sums} | {number} | {wall:.2f} | {cpu:.2f} |", flush=True)
        assert state.all_finite(model)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()

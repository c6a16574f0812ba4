"""Two ranks of a run: ``test_distributed.py`` starts this script and holds what it writes to what it should be.

Given a file with the settings of several runs, the ranks do two rounds of each, one run after another, and write what they come
to beside it; ``tests/parity/test_engines.py`` compares it.

Both are forks of one process, so that torch is imported once; between them runs what runs between the ranks of torchrun.
"""

import json
import os
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedfacet import rng, state
from fedfacet.build import build, rebuild
from fedfacet.clients.queries.base import Query
from fedfacet.config import compose_job
from fedfacet.corrections import Correction
from fedfacet.engines.distributed import DistributedEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Answer, Broadcast, ClientTask

ASKED = Path("asked")
LARGE = 16 << 20  # bytes


class Echo(Correction):
    """Sends back what it was sent, twice as large, and keeps what it kept, with one more."""

    def on_client_start(self, parameters, start):
        self.received = start.broadcast.extras, start.memory

    def on_client_end(self, end):
        extras, memory = self.received
        return {name: 2 * tensor for name, tensor in extras.items()}, {name: tensor + 1 for name, tensor in memory.items()}


class Slow(Query):
    """Takes its time, and leaves a trace."""

    name = "slow"
    needs_model = False

    def answer(self, context):
        with open(ASKED, "a") as file:
            file.write(f"{context.client_id}\n")
        time.sleep(0.3)
        return Answer(context.client_id, 1, 0)


class Waits(Query):
    """One rank's first answer waits until the other rank has given so many."""

    name = "waits"
    needs_model = False

    def __init__(self, slow, number):
        self.slow = slow
        self.number = number

    def answer(self, context):
        rank, until = int(os.environ["RANK"]), time.monotonic() + 20
        if rank == self.slow:
            while num_answered(1 - rank) < self.number and time.monotonic() < until:
                time.sleep(0.01)
        with open(f"answered-{rank}", "a") as file:
            file.write(f"{context.client_id}\n")
        return Answer(context.client_id, 1, 0)


def num_answered(rank):
    file = Path(f"answered-{rank}")
    return len(file.read_text().split()) if file.exists() else 0


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


class Refuses(Query):
    """Client 3, which as the first of the longest is rank 1's, does not answer."""

    name = "refuses"
    needs_model = True

    def answer(self, context):
        if context.client_id == 3:
            raise Unpicklable("no", "answer")
        return Answer(None, 0, 0)


def federation():
    """The offline main job, made short, without anything that writes."""
    overrides = ["experiment=digits_gsc", "model.width=2", "local.unit=steps", "local.amount=3", "heterogeneity.bias_steps=2"]
    config, _ = compose_job("train", overrides)
    config.logger = config.callbacks = {}
    federation = build(config, Path())
    clients = federation.engine.clients
    clients.objective.correction = Echo()
    with rng.forked(0, "weights"):
        wider = ClassificationObjective(SmallCNN(2, (3, 8, 8), width=3), correction=Echo(), optimizer=clients.optimizer)
    federation.engine.setup(replace(clients, other_objectives=[wider.to(memory_format=clients.memory_format)]))
    return federation


def facts(updates):
    """All that is in updates."""
    bundles = ("delta", "buffers", "extras", "memory")
    numbers = ("client_id", "num_samples", "num_steps", "step_weight", "metrics")
    return [
        [*(state.digest(getattr(update, name)) for name in bundles), *(getattr(update, name) for name in numbers)]
        for update in updates
    ]


def error_of(action):
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error), "\n".join(getattr(error, "__notes__", []))]
    return None


def drive(run):
    """What rank 0 does."""
    clients = run.engine.clients
    sequential = SequentialEngine(device="cpu")
    sequential.setup(clients)
    engine = DistributedEngine(device="cpu", timeout_seconds=30)
    engine.setup(clients)
    model, query = run.state.model, run.selector.heterogeneity
    extras = {"step": torch.tensor(3), "c": torch.linspace(0, 1, 5)}
    tasks = [
        ClientTask(client, 2, 0, Broadcast(model, extras), {"kept": torch.full((client,), 0.5)}, 1 / (1 + client % 3))
        for client in (5, 3, 9, 0, 17, 8, 2)
    ]
    indices = np.arange(len(clients.dataset.y))
    found = {"backend": engine._backend, "shared": engine.share({"seed": 7})}
    found["updates"] = [facts(one.run(tasks)) for one in (sequential, engine)]
    found["memory_alone"] = [
        update.memory["kept"].untyped_storage().nbytes() == 4 * update.client_id for update in engine.run(tasks)
    ]
    found["answers"] = [list(one.ask(query, tasks)) for one in (sequential, engine)]
    found["counts"] = [repr(one.evaluate(model, [indices, indices[:70]])) for one in (sequential, engine)]
    found["few"] = [repr(one.evaluate(model, [indices[:9]])) for one in (sequential, engine)]
    said = [one.predict(model, [indices, indices[:70]], {"personal|head.bias": torch.ones(2)}) for one in (sequential, engine)]
    found["predictions"] = [[[values.tolist() for values in part] for part in parts] for parts in said]
    wide = state.clone(clients.programs[1].tensors)
    mixed = [replace(task, broadcast=Broadcast(wide, extras)) if task.client_id % 2 else task for task in tasks]
    found["shapes"] = [facts(one.run(mixed)) for one in (sequential, engine)]
    found["shapes_answers"] = [list(one.ask(query, mixed)) for one in (sequential, engine)]
    found["shapes_counts"] = [repr(one.evaluate(wide, [indices])) for one in (sequential, engine)]
    found["nobody"] = len(list(engine.run([])))
    found["one"] = facts(engine.run(tasks[:1])) == found["updates"][0][:1]

    # Clients that take next to no time.
    posted, post = [], engine._ranks.post
    engine._ranks.post = lambda rank, message: posted.append(len(message.body.parts)) or post(rank, message)
    engine._fitting[""] = 1e9
    found["handfuls"] = facts(engine.run(tasks * 8)) == found["updates"][0] * 8
    found["posted"] = posted
    engine._fitting[""] = 1e9
    one_bad = [replace(task, seed=-1 if place == 3 else 0) for place, task in enumerate(tasks * 8)]
    found["failure_in_a_handful"] = error_of(lambda: list(engine.run(one_bad)))
    engine._ranks.post = post

    # One rank is slow, rank 0 or rank 1.
    found["waited"], found["answers_in_order"] = [], []
    for slow, number in ((0, 13), (1, 12)):
        answers = list(engine.ask(Waits(slow, number), tasks * 2))
        found["waited"].append([num_answered(rank) for rank in (0, 1)])
        found["answers_in_order"].append([answer.value for answer in answers] == [task.client_id for task in tasks * 2])
        for rank in (0, 1):
            Path(f"answered-{rank}").unlink()

    # A round is given up: by the next call, and by close() with another job after it.
    next(engine.ask(Slow(), tasks * 4))
    found["after_giving_up"] = facts(engine.run(tasks)) == found["updates"][0]
    found["asked"] = len(ASKED.read_text().split())

    bad = [replace(task, seed=-1 if task.client_id == 3 else 0) for task in tasks]
    found["failure"] = error_of(lambda: list(engine.run(bad)))
    found["failing_query"] = error_of(lambda: list(engine.ask(Refuses(), tasks)))
    found["failing_evaluation"] = error_of(lambda: engine.evaluate({}, [indices]))
    found["after_failures"] = facts(engine.run(tasks)) == found["updates"][0]

    next(engine.run(tasks * 4))
    engine.close()
    engine.close()
    second = DistributedEngine(device="cpu", timeout_seconds=30)
    second.setup(clients)
    second.share("second job")
    found["second_job"] = facts(second.run(tasks)) == found["updates"][0]
    second.close()

    # Large updates, of which rank 0 takes none for a while; then all, and then it is gone while rank 1 has more to send.
    third = DistributedEngine(device="cpu", timeout_seconds=30)
    third.setup(clients)
    third.share("third job")
    large = Broadcast(model, {"c": torch.ones(LARGE // 4)})
    many = [ClientTask(client % 24, 3, 0, large) for client in range(48)]
    updates = third.run(many)
    taken = [next(updates).client_id]
    time.sleep(1)
    found["large"] = taken + [update.client_id for update in updates] == [task.client_id for task in many]
    next(third.run(many))
    time.sleep(1)
    third.close()
    return found


def peak(*, forget=False):
    """The most bytes that this process has held since that was last forgotten; ``None`` where no /proc tells."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def serve(run):
    """What rank 1 does, and what it was told."""
    shared = []
    for _ in range(3):
        before = peak(forget=True)
        engine = DistributedEngine(device="cpu", timeout_seconds=30)
        engine.setup(run.engine.clients)
        shared.append(engine.share())
        engine.serve()
    driving = error_of(lambda: engine.evaluate(run.state.model, [np.arange(len(run.engine.clients.dataset.y))]))
    held = None if before is None else peak() - before
    return {"rank": engine.rank, "shared": shared, "driving": driving, "held": held}


def drive_all(runs):
    """What rank 0 does with the settings of several runs: name -> the results of its rounds, and the state that it ends in."""
    histories = {}
    for name, settings in runs.items():
        run = rebuild(settings, None)
        assert run.engine.share(name) == name
        histories[name] = [run.run_round() for _ in range(2)], run.state
        run.engine.close()
    return histories


def serve_all(runs):
    """What rank 1 does with them."""
    for name, settings in runs.items():
        run = rebuild(settings, None)
        assert run.engine.share() == name
        run.engine.serve()


def announce(run, num_ranks):
    """Write into the environment what torchrun would: where the ranks of a run meet, and how many they are."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=run)
    os.environ.update(WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks))


def main():
    torch.set_num_threads(1)
    file = Path(sys.argv[1]) if sys.argv[1:] else None
    if file is None:
        run, driver, server = federation(), drive, serve
    else:
        run, driver, server = json.loads(file.read_text()), drive_all, serve_all
    announce("two_ranks", 2)
    reading, writing = os.pipe()
    child = os.fork()
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
    if not child:
        try:
            os.write(writing, json.dumps(server(run)).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    found = driver(run)
    with os.fdopen(reading) as said:
        served = json.load(said)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if file is not None:
        torch.save(found, file.with_suffix(".pt"))
        sys.exit(status)
    Path("found.json").write_text(json.dumps(found | {"rank_1": served, "status": status}))


if __name__ == "__main__":
    main()

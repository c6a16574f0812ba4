"""What a large population costs a round outside training and queries: ``python benchmarks/population.py``."""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from provenance import headline, provenance

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.clients.queries.centroids import Centroids
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix, NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss, LossMoments, Valuation
from fedfacet.clients.queries.resources import Resources, RoundJoules, UploadSeconds
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.clients.trainer import Clients
from fedfacet.engines.base import Engine
from fedfacet.federation import Federation
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.cbim import CBIMSelector, Contract
from fedfacet.methods.favor import FavorSelector
from fedfacet.methods.feddiverse import FedDiverseSelector
from fedfacet.methods.fedrk import FedRKSelector
from fedfacet.methods.fmore import Bid, FMoreSelector
from fedfacet.methods.lag import LAG, LagSelector, Smoothness
from fedfacet.methods.s_fedavg import SFedAvgSelector
from fedfacet.selectors.active_fl import ActiveFLSelector
from fedfacet.selectors.agnostic import AgnosticSelector
from fedfacet.selectors.bandwidth_threshold import BandwidthThresholdSelector
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.fedcs import FedCSSelector
from fedfacet.selectors.fedpns import FedPNSSelector
from fedfacet.selectors.fl_cir import FLCIRSelector
from fedfacet.selectors.flame import FlameSelector
from fedfacet.selectors.k_fed import KFedSelector
from fedfacet.selectors.oort import OortSelector
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.size_weighted import SizeWeightedSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Answer, ClientTask, ClientUpdate, Facts, Partition, Query, ServerData, State

EVERYBODY_SEEN = "FLCIRSelector, everybody seen"

MORE = """
What takes more than O(K log K) for K clients, and why: FedCS O(C^2) for C candidates (a tenth of all by default) and FL-CIR
O(cohort K classes), because what a client adds depends on those chosen before it; k-FED clusters all centres anew, because
clients come late; FAVOR's network judges every client; S-FedAvg judges averages of many sub-cohorts on the server's samples,
which is free here; LAG adds the step to as many models as there are rounds in which somebody was heard last.
"""


class Effortless(Engine):
    """Clients that train for free, so that what is left of a round is what everything else costs."""

    device = "cpu"

    def __init__(self, model: State, num_clients: int) -> None:
        generator = np.random.default_rng(0)
        # Of unlike directions, so that FedPNS has somebody to flag.
        self._deltas = [
            {name: torch.from_numpy(generator.normal(0.0, 1e-3, tensor.shape)).float() for name, tensor in model.items()}
            for _ in range(101)
        ]
        self._confusion = generator.integers(1, 9, (10, 10))
        self._gradients = generator.uniform(0.1, 1.0, 10)
        self._answers = {
            "heterogeneity": generator.random((num_clients, 3)).tolist(),
            "interaction_matrix": generator.integers(0, 11, (num_clients, 2, 2)).tolist(),
            "local_loss": generator.random(num_clients).tolist(),
            "num_samples": generator.integers(1, 40, num_clients).tolist(),
            "valuation": generator.random(num_clients).tolist(),
            "loss_moments": [(20, 20 * loss, 20 * loss**2) for loss in generator.random(num_clients).tolist()],
            "resources": generator.uniform(0.1, 10.0, (num_clients, 3)).tolist(),
            "upload_seconds": generator.uniform(0.1, 10.0, num_clients).tolist(),
            "round_joules": generator.uniform(0.1, 10.0, num_clients).tolist(),
            "bid": np.column_stack([generator.random((num_clients, 3)), 2 * generator.random(num_clients)]).tolist(),
            "contract": [0.0] * num_clients,
            "centroids": generator.normal(0.0, 1.0, (num_clients, 2, 60)).tolist(),
        }

    def setup(self, clients: Clients) -> None:
        """Need nothing."""

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield updates drawn once."""
        for task in tasks:
            delta = self._deltas[task.client_id % len(self._deltas)]
            yield ClientUpdate(task.client_id, delta, {}, 20, 1, 1.0, {"loss_sum": 1.0, "num_seen": 20})

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield answers drawn once."""
        for task in tasks:
            value = self._answers[query.name][task.client_id]
            if query.name == "contract":
                value = query.menu.rewards[task.client_id % len(query.menu.rewards)]
            yield Answer(value, floats_up=np.size(value), samples=0)

    def evaluate(self, model: State, splits: Sequence[Any], *_: Any) -> list[Any]:
        """Return confusion counts drawn once, in which nothing takes time."""
        return [SimpleNamespace(confusion=self._confusion) for _ in splits]

    def head_gradients(self, model: State, samples: Any) -> NDArray[np.float64]:
        """Return gradients drawn once."""
        return self._gradients


def main() -> None:
    """Print the milliseconds of a round per selector, and the memory of a partition; save them if asked to."""
    parser = argparse.ArgumentParser(description="What a large population costs a round outside training and queries.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=200, help="of pow-d")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of torch, as in the recipes of small models")
    parser.add_argument("--save", metavar="NAME", help="write NAME.json and NAME.md into --results")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    torch.set_num_threads(options.threads)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    positions = np.random.default_rng(0).permutation(20 * options.clients)
    partition = Partition(tuple(np.sort(own) for own in np.split(positions, options.clients)))
    digest = partition.digest
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{options.clients} clients of 20 samples each: {grown:.0f} MB of index lists")
    measured = {}
    for name, rounds in measure(options, digest):
        whole, select = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name}: {whole:.1f} ms a round, {select:.1f} ms of it selecting")
        measured[name] = {
            "milliseconds": whole,
            "milliseconds_selecting": select,
            "longest": max(one for one, _ in rounds),
            "rounds": [one for one, _ in rounds],
            "rounds_selecting": [one for _, one in rounds],
        }
    if options.save:
        facts = provenance(options.save, ["python", "benchmarks/population.py", *sys.argv[1:]], load=load)
        asked = {name: getattr(options, name) for name in ("clients", "cohort", "candidates", "rounds", "threads")}
        options.results.mkdir(parents=True, exist_ok=True)
        target = options.results / options.save
        content = {**facts, **asked, "index_lists_mb": grown, "selectors": measured}
        target.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        target.with_suffix(".md").write_text(page(options.results) if options.save == "population" else markdown(content))
        print(f"written: {target}.json and .md", file=sys.stderr)


def measure(options: argparse.Namespace, digest: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield the milliseconds of each round, and those of selecting in it, for one selector after the other."""
    model = {"weight": torch.zeros(10, 60), "bias": torch.zeros(10)}
    engine = Effortless(model, options.clients)
    selectors: list[ClientSelector] = [
        UniformSelector(),
        RoundRobinSelector(),
        FedDiverseSelector(heterogeneity=TrueHeterogeneity(), pretraining_rounds=0),
        FedPNSSelector(),
        PowDSelector(local_loss=LocalLoss(), num_samples=NumSamples(), num_candidates=options.candidates),
        FedRKSelector(interaction_matrix=DisclosedInteractionMatrix(), pretraining_rounds=0),
        SizeWeightedSelector(num_samples=NumSamples()),
        ActiveFLSelector(valuation=Valuation()),
        OortSelector(loss_moments=LossMoments(), num_samples=NumSamples()),
        FedCSSelector(resources=Resources(), deadline=100.0),
        FlameSelector(valuation=Valuation(), round_joules=RoundJoules()),
        BandwidthThresholdSelector(upload_seconds=UploadSeconds()),
        AgnosticSelector(local_loss=LocalLoss()),
        FMoreSelector(bid=Bid(), num_samples=NumSamples(), resources=Resources()),
        CBIMSelector(contract=Contract(), resources=Resources()),
        FLCIRSelector(),
        FavorSelector(components=2, hidden=64, capacity=50),
        KFedSelector(centroids=Centroids(), local_loss=LocalLoss(), num_clusters=10),
        SFedAvgSelector(),
        LagSelector(smoothness=Smoothness(), constants=[1.0] * options.clients),
        FLCIRSelector(),
        FedCSSelector(resources=Resources(), deadline=100.0, candidates=1.0),
    ]
    names = [type(selector).__name__ for selector in selectors]
    names[-2:] = [EVERYBODY_SEEN, "FedCSSelector, everybody a candidate"]
    for name, selector in zip(names, selectors, strict=True):
        aggregator = LAG() if isinstance(selector, LagSelector) else FedAvg()
        with tempfile.TemporaryDirectory() as folder:
            federation = Federation(
                facts=Facts(options.clients, model, parameters=tuple(model), partition_digest=digest),
                engine=engine,
                selector=selector,
                aggregator=aggregator,
                mechanisms=[
                    ServerEvaluation(ServerData(np.arange(100), attributes=False), engine, aggregator, selector),
                    Callbacks(
                        {
                            "csv_log": CsvLog(run_dir=Path(folder)),
                            "save_checkpoint": SaveCheckpoint(run_dir=Path(folder), run_config={}),
                        }
                    ),
                ],
                rounds=10**9,
                cohort_size=options.cohort,
                seed=0,
            )
            for callback in federation.callbacks.values():
                callback.on_fit_start(federation)
            federation.run_round()  # in which every client may be asked something
            if name == EVERYBODY_SEEN:
                shares_KY = np.random.default_rng(0).dirichlet(np.ones(10), options.clients)
                times_K = torch.ones(options.clients, dtype=torch.int64)
                seen = {"shares": torch.from_numpy(shares_KY), "times": times_K}
                federation.state = replace(federation.state, selector=seen)
            rounds = []
            for _ in range(options.rounds):
                began = time.perf_counter()
                result = federation.run_round()
                rounds.append((1000 * (time.perf_counter() - began), 1000 * result.seconds["select"]))
            for callback in federation.callbacks.values():
                callback.on_fit_end(federation, "interrupted")  # waits for the checkpoint that is being written
        yield name, rounds


def page(results: Path) -> str:
    """Return the page of both benchmarks of large populations, as far as they were saved."""
    parts = [markdown(json.loads(file.read_text())) for file in [results / "population.json"] if file.exists()]
    parts += [crowd_markdown(json.loads(file.read_text())) for file in [results / "crowd.json"] if file.exists()]
    return "\n".join(parts)


def crowd_markdown(content: dict[str, Any]) -> str:
    """Return the table of ``crowd.py`` and where it comes from."""
    what = (
        f"Whole runs of {content['rounds']} rounds with a cohort of {content['cohort']}, 1 or 2 samples a client, an MLP of "
        "148 weights, one torch thread: seconds of the CPU, and MB. *start*: everything before the first round but the "
        "libraries, which take some 5 s and 810 MB. *round*: the median, without what clients train and answer and without its "
        "checkpoint, of which one is written a round. *resume*: two more rounds in a process of its own; *table* and *page*: "
        "`report.py` on the run, *page* with the picture of who was selected. feddiverse and pow_d have "
        "`participation=check_in`: of all clients 2,000 check in for a round."
    )
    heads = ["clients", "method", "start", "first round", "round", "checkpoint", "MB", "pictures", "summary", "peak MB"]
    heads += ["folder MB", "resume", "table", "page", "page's peak MB"]
    lines = [
        "## Very many clients",
        "",
        f"`{content['command']}`",
        "",
        headline(content, content.get("remark", "")),
        "",
        what,
        "",
    ]
    lines += ["| " + " | ".join(heads) + " |", "|---:|---|" + "---:|" * (len(heads) - 2)]
    for name, one in content["runs"].items():
        number, method = name.split()
        cells = [f"{int(number):,}", method, f"{one['start']:.1f}"]
        cells += [f"{one[part]:.3f}" for part in ("first_round", "round", "checkpoint")]
        cells += [f"{one['checkpoint_mb']:.1f}", f"{one['pictures']:.1f}", f"{one['summary']:.2f}", f"{one['peak_mb']:.0f}"]
        cells.append(f"{one['folder_mb']:.0f}")
        cells += [f"{one[part]['cpu']:.1f}" if part in one else "" for part in ("resume", "table", "page")]
        cells.append(f"{one['page']['peak_mb']:.0f}" if "page" in one else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def markdown(content: dict[str, Any]) -> str:
    """Return the table and where it comes from."""
    what = (
        f"{content['clients']:,} clients of 20 samples, {content['cohort']} a round, logistic regression of 610 weights; "
        f"{content['candidates']} candidates of pow-d, torch threads: {content['threads']}. Milliseconds of a round in which "
        f"neither training nor the answer to a query takes time, the median of {content['rounds']} rounds and the longest; "
        f"index lists: {content['index_lists_mb']:.0f} MB."
    )
    lines = [f"# {content['name']}", "", f"`{content['command']}`", "", headline(content), "", what, ""]
    lines += ["| selector | ms/round | longest | of it selecting |", "|---|---:|---:|---:|"]
    for name, one in content["selectors"].items():
        numbers = (one["milliseconds"], one["longest"], one["milliseconds_selecting"])
        lines.append(f"| {name} | {' | '.join(f'{number:.1f}' for number in numbers)} |")
    return "\n".join(lines) + "\n" + MORE


if __name__ == "__main__":
    main()

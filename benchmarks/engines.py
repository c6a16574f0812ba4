"""Seconds per round of engines and peers, in turn and in one run: ``python benchmarks/engines.py --help``."""

import argparse
import contextlib
import itertools
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import processes
from provenance import headline, provenance

HERE = Path(__file__).parent
SRC = HERE.parent / "src"
CONTENDERS = HERE / "contenders"
YARDSTICK = "bare"
SECONDS_TO_LEAVE = 20


class ContenderError(Exception):
    """A contender that does not start, answer or stay alive."""


@dataclass(frozen=True)
class Recipe:
    """How to start a contender.

    Attributes:
        name: of the row in the table.
        module: of ``contenders/``, speaks the protocol of ``turnstile.py``.
        python: the interpreter that runs it.
        overrides: of FedFacet's config, none for others.
    """

    name: str
    module: str
    python: str
    overrides: tuple[str, ...] = ()


@dataclass
class Measured:
    """What is known of one contender on one workload.

    Attributes:
        startup: seconds from the start of the process to the end of its first round.
        rounds: seconds of each timed round, per repeat.
        core_seconds: that the process tree was on a core for, per repeat; NaN where the system does not say.
        peak_memory: bytes of the process tree, the most that was seen while it started and in the rounds before the timed ones.
        versions: of the packages that the contender names.
        failure: why it was left out, or ``None``.
    """

    startup: float = float("nan")
    rounds: list[list[float]] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
    peak_memory: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    failure: str | None = None

    @property
    def seconds(self) -> float:
        """The median over all rounds."""
        return statistics.median(itertools.chain(*self.rounds))

    @property
    def spread(self) -> float:
        """The interquartile range over all rounds; 0 for a single one."""
        rounds = list(itertools.chain(*self.rounds))
        lower, _, upper = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else (0.0, 0.0, 0.0)
        return upper - lower

    @property
    def cores(self) -> float:
        """How many cores it was on at a time, on average over all rounds."""
        return sum(self.core_seconds) / sum(itertools.chain(*self.rounds))

    def ratio_to(self, other: "Measured") -> float:
        """The median over the repeats of one block's median divided by that of the other's block in the same repeat."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(statistics.median(mine) / statistics.median(theirs) for mine, theirs in pairs)


class Contender:
    """A process that plays a round when it is told to, and waits otherwise.

    Args:
        recipe: how to start it.
        workload: a key of ``workloads.WORKLOADS``.
        device: ``"cpu"`` or ``"cuda"``.
        patience: seconds after which a round counts as failed.
    """

    def __init__(self, recipe: Recipe, workload: str, device: str, patience: float) -> None:
        self.patience = patience
        self._folder = tempfile.TemporaryDirectory(prefix="fedfacet-benchmark-", ignore_cleanup_errors=True)
        self._errors = Path(self._folder.name) / "stderr"
        command = [
            recipe.python,
            "-m",
            f"contenders.{recipe.module}",
            "--workload",
            workload,
            "--device",
            device,
            *recipe.overrides,
        ]
        inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
        with open(self._errors, "w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd=self._folder.name,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(SRC), *inherited])},
                start_new_session=True,  # Ctrl-C is the harness's, which then closes all of them in order
            )

    def play(self) -> dict[str, Any]:
        """Have one round played and return the answer.

        Raises:
            ContenderError: if none comes.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(b"round\n")
            deadline = time.monotonic() + self.patience
            while select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                line = self.process.stdout.readline()
                if not line:
                    raise BrokenPipeError
                if line.startswith(b"{"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
        except BrokenPipeError:
            lines = [line for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
            raise ContenderError(lines[-1].strip() if lines else f"left with status {self.process.wait()}") from None
        raise ContenderError(f"no answer within {self.patience:g} s")

    def close(self) -> None:
        """Let it leave, make sure that it has, and remove its folder."""
        tree = processes.tree_of(self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in tree:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()


def main() -> None:
    """Measure, print, and save if asked to."""
    options = parse(sys.argv[1:])
    recipes = [*map(own_recipe(options), options.contenders), *options.ours]
    try:
        if options.memory is not None:
            watch_memory(options, recipes)
            return
        results = {workload: alternate(options, recipes, workload) for workload in options.workloads}
    except KeyboardInterrupt:
        sys.exit(130)
    report(options, results)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    from workloads import WORKLOADS  # imports torch, once it is clear that something is to be measured

    parser = argparse.ArgumentParser(description="Time engines and peers in turn, each in a process of its own.")
    parser.add_argument(
        "--workloads", nargs="+", choices=list(WORKLOADS), default=["W1"], metavar="W", help=", ".join(WORKLOADS)
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=[YARDSTICK, "sequential"],
        metavar="NAME",
        help=f"{', '.join(scripts())}; or FedFacet by one of its engines: {', '.join(engines())}",
    )
    parser.add_argument(
        "--ours",
        nargs="+",
        type=recipe_of_ours,
        default=[],
        metavar="NAME:OVERRIDE,...",
        help="FedFacet with overrides of its config, for example two:engine=workers,engine.workers=2,threads=1",
    )
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="NAME=PATH", help="the interpreter of a contender, where it is another one"
    )
    parser.add_argument("--rounds", type=int, default=5, help="in a block (default 5)")
    parser.add_argument("--repeats", type=int, default=3, help="blocks of each contender (default 3)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before the timed ones, the first included (default 2)")
    parser.add_argument("--memory", type=int, metavar="ROUNDS", help="memory after round 2 and after ROUNDS, no times")
    parser.add_argument("--neighbours", type=int, default=0, metavar="N", help="busy processes beside the timed rounds")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--patience", type=float, default=1800, metavar="S", help="a round may take so many seconds")
    parser.add_argument("--save", metavar="NAME", help="write NAME.json and NAME.md into --results")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    options = parser.parse_args(arguments)
    options.load = round(os.getloadavg()[0], 2)
    if min(options.rounds, options.repeats, options.warmup) < 1 or (options.memory is not None and options.memory < 3):
        parser.error("--rounds, --repeats and --warmup are 1 or larger, --memory is 3 or larger")
    try:
        options.python = dict(entry.split("=", 1) for entry in options.python)
    except ValueError:
        parser.error("--python takes NAME=PATH")
    if strangers := [name for name in options.contenders if name not in (*scripts(), *engines())]:
        parser.error(f"expected contenders of {', '.join([*scripts(), *engines()])}, but got {', '.join(strangers)}")
    names = [*options.contenders, *(recipe.name for recipe in options.ours)]
    if len(set(names)) < len(names):
        parser.error(f"each contender has a name of its own, but got {' '.join(names)}")
    return options


def scripts() -> list[str]:
    """Return the names of the contenders that have a file of their own."""
    shared = {"__init__", "arguments", "driven", "ours", "plain", "turnstile"}
    return sorted(file.stem for file in CONTENDERS.glob("*.py") if file.stem not in shared)


def engines() -> list[str]:
    """Return the names of FedFacet's engines."""
    return sorted(file.stem for file in (HERE.parent / "conf" / "engine").glob("*.yaml"))


def recipe_of_ours(text: str) -> Recipe:
    """Read ``NAME:OVERRIDE,OVERRIDE``."""
    name, colon, overrides = text.partition(":")
    if not (name and colon):
        raise argparse.ArgumentTypeError(f"expected NAME:OVERRIDE,..., but got {text!r}")
    return Recipe(name, "ours", sys.executable, tuple(filter(None, overrides.split(","))))


def own_recipe(options: argparse.Namespace) -> Any:
    """Return a function from a contender's name to its recipe: a file of ``contenders/`` or else an engine."""

    def recipe(name: str) -> Recipe:
        if name in scripts():
            return Recipe(name, name, options.python.get(name, sys.executable))
        return Recipe(name, "ours", options.python.get(name, sys.executable), (f"engine={name}",))

    return recipe


@contextlib.contextmanager
def started(recipe: Recipe, options: argparse.Namespace, workload: str) -> Iterator[Contender]:
    """Start a contender, and close it whatever happens."""
    contender = Contender(recipe, workload, options.device, options.patience)
    try:
        yield contender
    finally:
        contender.close()


def alternate(options: argparse.Namespace, recipes: Sequence[Recipe], workload: str) -> dict[str, Measured]:
    """Time all contenders on one workload: started one by one, then a block of rounds each, in an order that rotates."""
    results = {recipe.name: Measured() for recipe in recipes}
    alive: dict[str, Contender] = {}
    with contextlib.ExitStack() as stack:
        for recipe in recipes:
            say(f"{workload}: {recipe.name} starts")
            measured = results[recipe.name]
            began = time.perf_counter()
            contender = stack.enter_context(started(recipe, options, workload))
            try:
                with processes.PeakMemory(contender.process.pid) as peak:
                    measured.versions = contender.play().get("versions", {})
                    measured.startup = time.perf_counter() - began
                    for _ in range(options.warmup - 1):
                        contender.play()
                measured.peak_memory = peak.bytes
                alive[recipe.name] = contender
            except ContenderError as error:
                measured.failure = str(error)
                say(f"{workload}: {recipe.name} is left out: {error}")
        stack.enter_context(busy_neighbours(options.neighbours))
        for repeat in range(options.repeats):
            say(f"{workload}: repeat {repeat + 1} of {options.repeats}")
            names = list(alive)
            turn = repeat % max(1, len(names))
            for name in [*names[turn:], *names[:turn]]:
                try:
                    before = processes.core_seconds_of(alive[name].process.pid)
                    block = [contender_seconds(alive[name]) for _ in range(options.rounds)]
                    results[name].core_seconds.append(processes.core_seconds_of(alive[name].process.pid) - before)
                    results[name].rounds.append(block)
                except ContenderError as error:
                    results[name].failure = str(error)
                    say(f"{workload}: {name} is left out: {error}")
                    del alive[name]
    return results


@contextlib.contextmanager
def busy_neighbours(number: int) -> Iterator[None]:
    """Keep processes of one busy thread each beside what goes on inside the block."""
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def contender_seconds(contender: Contender) -> float:
    """Have one round played; return how long it took."""
    return float(contender.play()["seconds"])


def watch_memory(options: argparse.Namespace, recipes: Sequence[Recipe]) -> None:
    """Print each contender's memory after round 2 and after the last one; write it as Markdown if asked to."""
    heads = ["workload", "contender", "round 2", f"round {options.memory}", "change"]
    title, rows = "Memory of the process tree", []
    for workload in options.workloads:
        for recipe in recipes:
            say(f"{workload}: {recipe.name}, {options.memory} rounds")
            with started(recipe, options, workload) as contender:
                try:
                    held = {}
                    for number in range(1, options.memory + 1):
                        contender.play()
                        if number in (2, options.memory):
                            held[number] = processes.memory_of(contender.process.pid)
                except ContenderError as error:
                    say(f"{workload}: {recipe.name} failed: {error}")
                    continue
            early, late = held[2], held[options.memory]
            rows.append([workload, recipe.name, megabytes(early), megabytes(late), f"{100 * (late / early - 1):+.1f} %"])
    print_table(title, heads, rows)
    if options.save:
        target = options.results / f"{options.save}.md"
        options.results.mkdir(parents=True, exist_ok=True)
        target.write_text(markdown(facts_of_the_run(options, {}), heads, [(title, rows, [])]))
        say(f"written: {target}")


def report(options: argparse.Namespace, results: dict[str, dict[str, Measured]]) -> None:
    """Print a table per workload; write json and Markdown if asked to."""
    from workloads import WORKLOADS

    heads = ["contender", "s/round", "IQR", "x bare", "cores", "peak memory", "start-up"]
    sections = []
    for workload, measured in results.items():
        title = f"{workload}: {WORKLOADS[workload].what}"
        rows = [row(name, one, measured.get(YARDSTICK)) for name, one in measured.items() if one.failure is None]
        failures = [f"{name} failed: {one.failure}" for name, one in measured.items() if one.failure is not None]
        print_table(title, heads, rows)
        print(*failures, sep="\n", end="\n" if failures else "")
        sections.append((title, rows, failures))
    if options.save:
        facts = facts_of_the_run(options, results)
        options.results.mkdir(parents=True, exist_ok=True)
        content = {
            **facts,
            "workloads": {
                workload: {name: as_json(one, measured.get(YARDSTICK)) for name, one in measured.items()}
                for workload, measured in results.items()
            },
        }
        target = options.results / options.save
        target.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        target.with_suffix(".md").write_text(markdown(facts, heads, sections))
        say(f"written: {target}.json and .md")


def row(name: str, measured: Measured, yardstick: Measured | None) -> list[str]:
    """Return one line of a table."""
    ratio = ratio_of(measured, yardstick)
    return [
        name,
        f"{measured.seconds:.4f}",
        f"{measured.spread:.4f}",
        "" if ratio is None else f"{ratio:.3f}",
        "" if math.isnan(measured.cores) else f"{measured.cores:.2f}",
        megabytes(measured.peak_memory),
        f"{measured.startup:.1f} s",
    ]


def ratio_of(measured: Measured, yardstick: Measured | None) -> float | None:
    """Return the ratio to the bare loop, or ``None`` where one of the two is missing."""
    if yardstick is None or yardstick.failure is not None or measured.failure is not None:
        return None
    return measured.ratio_to(yardstick)


def as_json(measured: Measured, yardstick: Measured | None) -> dict[str, Any]:
    """Return everything that was measured and what follows from it."""
    raw = asdict(measured)
    if measured.failure is not None:
        return {**raw, "startup": None}
    return {**raw, "seconds": measured.seconds, "iqr": measured.spread, "ratio_to_bare": ratio_of(measured, yardstick)}


def markdown(facts: dict[str, Any], heads: Sequence[str], sections: Sequence[tuple[str, list[list[str]], list[str]]]) -> str:
    """Return the tables and where they come from."""
    lines = [
        f"# {facts['name']}",
        "",
        f"`{facts['command']}`",
        "",
        headline(facts, f"{facts['neighbours']} busy neighbours" if facts["neighbours"] else ""),
    ]
    for title, rows, failures in sections:
        lines += ["", f"## {title}", "", f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines += ["", *failures] if failures else []
    return "\n".join(lines) + "\n"


def facts_of_the_run(options: argparse.Namespace, results: dict[str, dict[str, Measured]]) -> dict[str, Any]:
    """Return where the numbers come from."""
    command = ["python", "benchmarks/engines.py", *sys.argv[1:]]
    facts = provenance(options.save, command, load=options.load, device=options.device)
    versions = facts["versions"]
    for measured in results.values():
        for name, one in measured.items():
            versions |= {f"{name}'s {package}": number for package, number in one.versions.items() if package not in versions}
    return {
        **facts,
        "rounds": options.rounds,
        "repeats": options.repeats,
        "warmup": options.warmup,
        "neighbours": options.neighbours,
    }


def megabytes(size: int) -> str:
    """Return a size as it is printed."""
    return f"{size / 1e6:.0f} MB"


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as the rest of the house does."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for position, head in enumerate(heads):
        table.add_column(head, justify="right" if position else "left", no_wrap=True)
    for line in rows:
        table.add_row(*line)
    Console(markup=False).print(table)


def say(text: str) -> None:
    """Tell on standard error what goes on."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

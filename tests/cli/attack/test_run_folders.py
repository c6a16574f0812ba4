"""Damaged and forged run folders: each is refused in one sentence, or its run goes on to the same end.

Who seals a forged checkpoint anew has a run of his own: there only tracebacks and hangs count.
"""

import contextlib
import functools
import hashlib
import io
import re
import shutil

import pytest
import torch

import fedfacet
from fedfacet.storage import checkpoint

pytestmark = pytest.mark.slow

FAST = ("threads=1", "model.width=2", "model.hidden=4", "heterogeneity=true", "~callbacks.figures", "federation.rounds=2")
METHODS = {
    "probe": ("selector=probe_fairness", "aggregator=fednova"),
    "kept": ("personal=head", "local.keep_optimizer=true", "selector=fedpns", "scheduler=plateau"),
    "two halves": ("method=scaffold", "selector=round_robin", "participation=dropouts"),
    "vectors": ("selector=hcsfed", "aggregator=fedadam", "callbacks=[default,evaluate_clients]"),
}
LONGER = "federation.rounds=3"


@pytest.fixture(scope="module", params=METHODS)
def started(request, tmp_path_factory, results):
    """A run of two rounds, and the results of its third."""
    folder = tmp_path_factory.mktemp("started")
    fedfacet.train(*FAST, *METHODS[request.param], f"paths.output_dir={folder / 'run'}")
    shutil.copytree(folder / "run", folder / "longer")
    fedfacet.train(f"resume={folder / 'longer'}", LONGER)
    return folder / "run", results(folder / "longer")


@pytest.fixture
def spoilt(started, tmp_path):
    """Return a function that yields fresh copies of the run, one for each attack."""

    def copies(number):
        for _ in range(number):
            copy = shutil.copytree(started[0], tmp_path / "run", dirs_exist_ok=False)
            yield copy
            shutil.rmtree(copy)

    return copies


def go_on(run, came, expected, results, *overrides):
    fedfacet.train(f"resume={run}", LONGER, *overrides)
    came("the same" if results(run) == expected else "another end")


def damage(draw, content):
    """Damage of the kind that disks, editors and broken transfers make."""
    content = bytearray(content)
    kind, at = (
        draw.choice(["bit", "bit", "bit", "cut", "zeros", "garbage", "twice", "empty"]),
        draw.randrange(len(content) or 1),
    )
    if kind == "bit" and content:
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif kind == "garbage":
        content[at : at + 64] = draw.randbytes(64)
    elif kind == "twice":
        content *= 2
    else:
        content.clear()
    return f"{kind} at {at}", bytes(content)


def test_damaged_files(started, spoilt, draw, attack, results):
    for run in spoilt(50):
        file = draw.choice(sorted(path for path in run.rglob("*") if path.is_file()))
        kind, content = damage(draw, file.read_bytes())
        with attack(f"{kind} of {file.relative_to(run)}") as came:
            file.write_bytes(content)
            go_on(run, came, started[1], results)
            assert results(run) == started[1], "a silent difference"


def test_tampered_tables(started, spoilt, draw, attack, results):
    for run in spoilt(15):
        file = draw.choice(sorted(run.glob("*.csv")))
        lines = file.read_text().splitlines(keepends=True)
        kind = draw.choice(["drop", "swap", "edit", "header", "more", "gone", "folder", "other", "spaces", "newlines"])
        with attack(f"{kind} in {file.name}") as came:
            if kind in ("gone", "folder"):
                file.unlink()
                if kind == "folder":
                    file.mkdir()
            else:
                changed = {
                    "drop": lines[:-1],
                    "swap": [lines[0], *reversed(lines[1:])],
                    "edit": [*lines[:-1], lines[-1].replace(",", ",1", 1)],
                    "header": [lines[0].replace(",", ";", 1), *lines[1:]],
                    "more": [*lines, lines[-1].replace("2,", "3,", 1)],
                    "other": ["round,loss\n", "1,0\n"],
                    "spaces": [f" {line}" for line in lines],
                    "newlines": [line.replace("\n", "\r\n") for line in lines],
                }[kind]
                file.write_text("".join(changed), newline="")
            go_on(run, came, started[1], results)
            assert results(run) == started[1], "a silent difference"


def ring():
    value = {}
    value["again"] = value
    return value


def deep():
    value = 1
    for _ in range(80):
        value = {"deeper": value}
    return value


def places(value, path=()):
    """Yield all places in nested tables and lists: the container, the key and the path."""
    if isinstance(value, dict | list):
        for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key, (*path, key)
            yield from places(entry, (*path, key))


def forge(draw, content):
    """Change one place in a checkpoint, and return what was done."""
    parts = {}
    for container, key, path in places(content):
        parts.setdefault(path[:2], []).append((container, key, path))  # or most would hit the configuration or the model
    container, key, path = draw.choice(parts[draw.choice(sorted(parts, key=str))])
    value = container[key]
    kind = draw.choice(["gone", "other", "other", "other", "tensor", "renamed", "structure"])
    if kind == "gone":
        del container[key]
    elif kind == "renamed" and isinstance(container, dict):
        container[draw.choice(["x", 7, -1, 10**30, None])] = container.pop(key)
    elif kind == "tensor" and isinstance(value, torch.Tensor):
        makers = [lambda: value.double(), lambda: value[:0], lambda: value.reshape(-1)[:1], lambda: value[None],
                  lambda: value.to(torch.int32), lambda: value.to_sparse(), lambda: torch.full_like(value, -1),
                  lambda: value.clone().requires_grad_() if value.is_floating_point() else value.bool()]  # fmt: skip
        container[key] = draw.choice(makers)()
    elif kind == "structure":
        container[key] = draw.choice([ring, deep, lambda: functools.reduce(lambda held, _: [held] * 10, range(12), [0])])()
    else:
        others = [None, True, -1, 10**24, 0, 1e308, float("nan"), "", "x", "../..", [], {}, [1, 2], {"a": 1}, torch.zeros(2),
                  torch.tensor([10**12])]  # fmt: skip
        container[key] = draw.choice(others)
    return f"{kind} at {'.'.join(map(str, path))}"


@pytest.mark.filterwarnings("ignore:.*sparse.*:UserWarning")
def test_forged_checkpoints(started, spoilt, draw, attack, results):
    for run in spoilt(30):
        path = run / "checkpoints" / "last.ckpt"
        content = torch.load(path, weights_only=True)
        told = forge(draw, content)
        with attack(told) as came:
            saved = io.BytesIO()
            torch.save(content, saved)
            seal = re.search(rb"\nfedfacet checkpoint \d, sha256 ", path.read_bytes())[0]
            path.write_bytes(saved.getvalue() + seal + hashlib.sha256(saved.getvalue()).hexdigest().encode() + b"\n")
            go_on(run, came, started[1], results)


def test_checkpoints_damaged_and_sealed_again(started, spoilt, draw, attack, results):
    for run in spoilt(8):
        path = run / "checkpoints" / "last.ckpt"
        content = path.read_bytes()
        cut = len(content) - checkpoint._SEAL_SIZE
        kind, damaged = damage(draw, content[:cut])
        with attack(kind) as came:
            seal = content[cut:].partition(b"sha256 ")[0] + b"sha256 "
            path.write_bytes(damaged + seal + hashlib.sha256(damaged).hexdigest().encode() + b"\n")
            go_on(run, came, started[1], results)


def test_damaged_files_read_by_python(started, spoilt, draw, attack):
    for run in spoilt(40):
        file = draw.choice([run / "config.yaml", run / "summary.json", run / "metrics.csv", *sorted((run / "model").iterdir())])
        kind, content = damage(draw, file.read_bytes())
        file.write_bytes(content)
        with attack(f"{kind} of {file.relative_to(run)}") as came:
            read = fedfacet.load_run(run)
            assert all([read.config, read.metrics is not None, read.summary is not None])
            with contextlib.suppress(fedfacet.FedFacetError if file.parent == run else ()):  # weights of more than one network
                assert read.model is not None
            came("read")

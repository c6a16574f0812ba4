"""What the rooms of the house may know of one another, read from their imports."""

import ast
import functools
import graphlib
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
FILES = sorted(SRC.rglob("*.py"))
SERVER = [
    *(SRC / "fedfacet" / f"{name}.py" for name in ("federation", "round", "server", "mechanism", "query_session")),
    *(SRC / "fedfacet" / "mechanisms").glob("*.py"),
    *(SRC / "fedfacet" / "selectors").glob("*.py"),
    *(SRC / "fedfacet" / "aggregators").glob("*.py"),
    *(SRC / "fedfacet" / "methods").glob("*.py"),
    *(SRC / "fedfacet" / "submodels").glob("*.py"),
]
FLOORS = [
    # What everybody may know: values, and help that knows nothing of learning.
    "answer_form",
    "errors types rng heterogeneity arguments libraries machine_memory moved terminal waiting builtin",
    "entry shell_words state records simplex confusion optional derived cores provenance",
    "storage",
    "metrics",
    # Parts that an option chooses. Each knows values and metrics, and no other part.
    "partitioners models losses corrections personal transforms participation schedulers selectors aggregators "
    "adapters capacities submodels attacks privacy termination devices",
    "data objectives config clock accounting query",
    # Where the data lives, and who runs what happens there.
    "clients",
    "parallel",
    "engines",
    "server_evaluator query_session",
    "mechanism",
    "methods algorithm",
    "checked_aggregate",
    "checked_mechanisms",
    "server",
    # The rounds, and what they are made of.
    "round",
    "mechanisms",
    "federation",
    "callbacks history",
    "compatibility client_setup plots",
    "privacy_gate run_folder",
    "summing",
    "assembly",
    "build",
    # A federation whose clients are elsewhere.
    "deploy",
    # What is done with runs.
    "analysis",
    "runs",
    "audit",
    "papers",
    "commands",
]
"""Every room and module of the package, from the bottom up. Each imports from lower floors only, not from its own.

The scripts in ``src/`` stand on top of them, and so do the package's doors. A new room is written down on the lowest floor that
lies above all it imports.
"""
DOORS = {"__init__", "__main__"}
KNOWN_EXCEPTIONS: dict[tuple[str, str], str] = {}
VALUES = ["types", "records", "rng", "state", "heterogeneity", "errors", "arguments", "simplex", "confusion"]
GLOBAL_TORCH = {"manual_seed", "seed", "set_rng_state", "seed_everything", "manual_seed_all"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}


def name_of(path):
    return path.relative_to(SRC).as_posix()


@functools.cache
def imported(path):
    """Return every module that a file imports, also inside functions and for type checkers only."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def inside(modules, room):
    return sorted({module for module in modules if module == room or module.startswith(f"{room}.")})


# The wall between the server and where the data lives


def test_server_rooms_do_not_import_data():
    faults = {
        name_of(path): inside(imported(path), "fedfacet.data") + inside(imported(path), "fedfacet.clients") for path in SERVER
    }
    assert not {name: modules for name, modules in faults.items() if modules}


AT_SITES = {"site", "samples", "settings", "memory", "pilot", "flare_job"}
"""Modules of ``deploy/`` that run where the data lie, or in FLARE's own processes; all others are the server's."""
NO_READERS = {"dataset", "augmentation", "fingerprint", "federated", "held_out_clients", "validation_of_server"}
"""Modules of ``data/`` that say what data are and who has which, and open no file."""


def test_servers_do_not_load_data_through_others(start_script, tmp_path):
    """In a process without our modules: first the server's rooms, which load none, then what ``serve.py`` runs in its own."""
    rooms = [".".join(path.relative_to(SRC).with_suffix("").parts) for path in SERVER if path.stem != "__init__"]
    deployed = [
        path.stem for path in (SRC / "fedfacet" / "deploy").glob("*.py") if path.stem not in AT_SITES | {"__init__", "loopback"}
    ]
    assert {"engine", "exchange", "server", "journal", "card"} <= set(deployed)
    code = f"""
import importlib, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "fedfacet" and name != "fedfacet.libraries"]:
    del sys.modules[name]
for name in {rooms!r}:
    importlib.import_module(name)
print([name for name in sys.modules if name.startswith(("fedfacet.data", "fedfacet.clients"))])
print("fedfacet.federation" in sys.modules)
for name in {[*(f"fedfacet.deploy.{name}" for name in deployed), "fedfacet.commands.serve", "fedfacet.runs.open_run"]!r}:
    importlib.import_module(name)
print(sorted(name.removeprefix("fedfacet.data.") for name in sys.modules if name.startswith("fedfacet.data.")))
print([name for name in sys.modules if name.startswith("fedfacet.deploy.") and name.split(".")[2] in {AT_SITES!r}])
"""
    (tmp_path / "server.py").write_text(code)
    done = start_script(tmp_path, tmp_path / "server.py").result()
    assert done.status == 0, done.err
    printed = done.out.splitlines()
    assert printed[:2] == ["[]", "True"]
    assert set(ast.literal_eval(printed[2])) <= NO_READERS
    assert printed[3] == "[]"
    for name in ("engine", "exchange", "journal", "client_registry", "protocol", "transport", "agreement"):
        assert not inside(imported(SRC / "fedfacet" / "deploy" / f"{name}.py"), "fedfacet.data"), name


def test_nothing_of_ours_that_crosses_is_a_pickle_or_a_socket():
    for path in (SRC / "fedfacet" / "deploy").glob("*.py"):
        assert not inside(imported(path), "pickle") + inside(imported(path), "socket"), name_of(path)


def files_of(room):
    """Return the files of a room, which may be a module or a package."""
    module = SRC / "fedfacet" / f"{room}.py"
    return [module] if module.is_file() else sorted((SRC / "fedfacet" / room).glob("*.py"))


@pytest.mark.parametrize(
    "room",
    [
        *("selectors", "aggregators", "partitioners", "transforms", "participation", "personal", "schedulers"),
        *("capacities", "submodels", "attacks", "privacy", "termination", "devices"),
    ],
)
def test_parts_import_values_and_their_own_base_alone(room):
    """Law 5: they know values, not each other, and what a run has written by its reader alone."""
    allowed = tuple(f"fedfacet.{module}" for module in (*VALUES, "optional", "metrics.direction", room, "storage.checkpoint"))
    for path in files_of(room):
        modules = inside(imported(path), "fedfacet")
        strangers = [m for m in modules if m not in ("fedfacet", "fedfacet.storage") and not m.startswith(allowed)]
        assert not strangers, f"{name_of(path)} imports {strangers}"
        siblings = [m for m in modules if m.startswith(f"fedfacet.{room}.") and not m.startswith(f"fedfacet.{room}.base")]
        assert not siblings, f"{name_of(path)} imports {siblings}"


def test_values_know_no_room():
    rooms = {f"fedfacet.{path.name}" for path in (SRC / "fedfacet").iterdir() if path.is_dir()}
    for module in VALUES:
        strangers = {m for m in imported(SRC / "fedfacet" / f"{module}.py") if ".".join(m.split(".")[:2]) in rooms}
        assert not strangers, f"{module}.py imports {strangers}"


# The order of the rooms


def room_of(path):
    return path.relative_to(SRC / "fedfacet").with_suffix("").parts[0]


def rooms_imported(path):
    """Return the other rooms that a file imports from; the package itself has nothing for them but its version."""
    modules = inside(imported(path), "fedfacet")
    return {module.split(".")[1] for module in modules if module != "fedfacet"} - {room_of(path), "__version__"}


def test_no_import_leads_upward_or_in_a_circle():
    """Imports inside functions and for type checkers count."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}
    files = [path for path in (SRC / "fedfacet").rglob("*.py") if room_of(path) not in DOORS]
    assert {room_of(path) for path in files} == set(floor), "FLOORS lacks a room, or has one that is gone"
    imports = {(room_of(path), other): name_of(path) for path in files for other in rooms_imported(path)}
    upward = {(room, other): file for (room, other), file in imports.items() if floor.get(other, len(FLOORS)) >= floor[room]}
    assert upward.keys() - KNOWN_EXCEPTIONS.keys() == set(), upward
    assert KNOWN_EXCEPTIONS.keys() - upward.keys() == set(), "an exception that is no longer needed must go"


# The graph of single modules

ABOVE = {"analysis", "pages", "plots", "papers", "audit", "deploy"}
"""Rooms of reports, audits and deployments: they may import all others, and of all others only commands import them."""


def module_of(path):
    parts = path.relative_to(SRC / "fedfacet").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def graph():
    """Return every module of the package with those that it imports; ``from room import module`` leads to that module."""
    files = {module_of(path): path for path in (SRC / "fedfacet").rglob("*.py")}
    found = {}
    for module, path in files.items():
        named = {name.removeprefix("fedfacet.") for name in inside(imported(path), "fedfacet")}
        packages = {name.rpartition(".")[0] for name in named & files.keys()}
        found[module] = (named & files.keys()) - packages - {module}
    return found


def test_no_modules_import_one_another_in_a_circle():
    """Imports inside functions and for type checkers count, also within a room."""
    graphlib.TopologicalSorter(graph()).prepare()


def test_only_commands_import_reports_audits_and_deployments():
    rooms = {(module.split(".")[0], other.split(".")[0]) for module, others in graph().items() for other in others}
    through = {(room, other) for room, other in rooms if other in ABOVE and room not in ABOVE | {"commands", "__main__"}}
    assert not through


# Configs


def test_only_config_build_runs_and_commands_see_a_config():
    """The scripts do too, and the report reads the files that runs leave, and yamls of papers."""
    readers = {f"fedfacet/{name}.py" for name in ("build", "analysis/runs", "papers/layouts")}
    rooms = (SRC, *(SRC / "fedfacet" / room for room in ("config", "runs", "commands")))
    outside = [path for path in FILES if path.parent not in rooms]
    package = [path for path in outside if name_of(path) not in readers]
    seen = {name_of(path): inside(imported(path), "hydra") + inside(imported(path), "omegaconf") for path in package}
    assert not {name: modules for name, modules in seen.items() if modules}


def test_the_package_does_not_import_the_scripts():
    scripts = {file.stem for file in SRC.glob("*.py")}
    seen = {name_of(path): {module.split(".")[0] for module in imported(path)} & scripts for path in FILES}
    assert not {name: modules for name, modules in seen.items() if modules}


def test_scripts_are_not_named_like_modules_of_python():
    assert not {file.stem for file in SRC.glob("*.py")} & sys.stdlib_module_names


# Randomness


def global_draws(path):
    """Return what a file does with generators that the whole process shares."""
    faults = ["import random"] if inside(imported(path), "random") else []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            used = ast.unparse(node)
            numpys = used.startswith(("np.random.", "numpy.random.")) and not used.endswith(".Generator")
            torchs = node.attr in GLOBAL_TORCH and used.startswith(("torch.", "L.", "lightning."))
            faults += [used] if numpys or torchs else []
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            draws = called.startswith("torch.") and called.split(".")[-1] in DRAWS
            faults += [called] if draws and "generator" not in {keyword.arg for keyword in node.keywords} else []
    return faults


def test_nobody_but_rng_touches_a_global_generator():
    """Law 2: not Python's, not numpy's, and torch's only inside ``rng.forked``, by layers that know no other."""
    faults = {name_of(path): global_draws(path) for path in FILES if name_of(path) != "fedfacet/rng.py"}
    assert not {name: used for name, used in faults.items() if used}


# The readers above, or nothing here could fail


def test_imports_are_found_wherever_they_stand(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "import a.b\nif TYPE_CHECKING:\n    import e\n\n\ndef f():\n    from fedfacet.data.dataset import Dataset\n"
    )
    assert imported(file) == {"a.b", "e", "fedfacet.data.dataset", "fedfacet.data.dataset.Dataset"}
    assert inside(imported(file), "fedfacet.data")
    assert not inside(imported(file), "fedfacet.dat")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import random", True),
        ("from random import choice", True),
        ("np.random.seed(0)", True),
        ("np.random.rand(3)", True),
        ("np.random.default_rng(0)", True),
        ("torch.manual_seed(0)", True),
        ("torch.cuda.manual_seed_all(0)", True),
        ("L.seed_everything(0)", True),
        ("torch.randperm(5)", True),
        ("torch.randperm(5, generator=own)", False),
        ("def f(rng: np.random.Generator): rng.random(3)", False),
        ("rng.stream(0, 'selection').permutation(3)", False),
    ],
)
def test_global_draws_are_found(tmp_path, line, found):
    file = tmp_path / "module.py"
    file.write_text(line)
    assert bool(global_draws(file)) is found


def test_no_file_is_longer_than_a_reader_keeps_in_mind():
    assert {name_of(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 400} == {}

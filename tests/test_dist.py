"""What is handed out: the sdist has all that the tests need, and nothing that was downloaded or that a run wrote."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import PurePosixPath

import pytest

from fedfacet import provenance


def test_the_sdist_has_everything_but_data_and_runs(checkout, tmp_path):
    source = tmp_path / "source"
    left_out = shutil.ignore_patterns(".git", ".venv*", "*cache*", "logs", "build", "dist", "*.png", "results")
    shutil.copytree(checkout, source, ignore=left_out)
    for file in ("data/mnist/MNIST/raw/labels", "logs/train/runs/now/metrics.csv"):
        (source / file).parent.mkdir(parents=True)
        (source / file).touch()
    (source / ".gitignore").unlink()  # as in an archive of the sources, where no tool knows what git ignores
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=source, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert {"src", "conf", "docs", "tests", "LICENSE", "README.md", "Makefile", "Dockerfile", "constraints.txt"} <= top
    assert not {"logs", ".git", ".venv", ".github"} & top
    assert {name for name in names if name.startswith("data/")} == {"data/README.md"}
    tests = {path.relative_to(checkout).as_posix() for path in (checkout / "tests").rglob("*.py")}
    assert tests <= names


def test_an_installed_package_has_no_commit(checkout, tmp_path):
    """Where it lies in the checkout of another project, whose commit is not its own."""
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "fedfacet"
    packages.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "theirs"], check=True)
    assert provenance.commit_of(packages / "build.py") is None
    theirs = tmp_path / "src" / "fedfacet" / "build.py"
    theirs.parent.mkdir(parents=True)
    assert provenance.commit_of(theirs), "a checkout's own commit is told"


@pytest.fixture
def left_out(checkout):
    """Return a function: a path -> whether Docker leaves it out of the image, by its rules: the last pattern decides."""
    rules = []
    for line in (checkout / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            parts = re.split(r"(\*\*/|\*)", line.removeprefix("!"))
            pattern = "".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts)
            rules.append((re.compile(pattern), not line.startswith("!")))

    def of(path):
        steps = [str(step) for step in (PurePosixPath(path), *PurePosixPath(path).parents)]
        return next((out for rule, out in reversed(rules) if any(map(rule.fullmatch, steps))), False)

    return of


def test_the_image_has_every_file_of_the_checkout(checkout, left_out):
    """Tests read pages, settings and the files of deploy/, and run in the image too."""
    listed = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("no git repository")
    assert [file for file in listed.stdout.splitlines() if left_out(file)] == []


@pytest.mark.parametrize(
    "path",
    [
        "kits/pilot/prod_00/server/startup/server.key", "deploy/kits/pilot/prod_00/site_0/startup/client.key",
        "pilot/site_0/client_00.npz", "deploy/pilot/site_0/client.yaml", "deploy/runs/pilot/metrics.csv", "deploy/pipe/relay",
        "data/mnist/MNIST/raw/labels", "logs/train/runs/now/metrics.csv", ".venv/bin/python", ".git/config",
        "src/fedfacet/deploy/__pycache__/site.pyc",
    ],
)  # fmt: skip
def test_neither_image_nor_commit_has_keys_data_or_runs(path, checkout, left_out):
    assert left_out(path)
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "--no-index", path], cwd=checkout, stderr=subprocess.DEVNULL)
    assert ignored.returncode in (0, 128) or path.startswith(".git/"), "git has to ignore it too"

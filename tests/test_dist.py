"""What is handed out: the sdist has all that the tests need, and nothing that was downloaded or that a run wrote."""

import shutil
import subprocess
import sys
import tarfile

from fedfacet import build


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
    assert build._git_commit(packages / "build.py") is None
    theirs = tmp_path / "src" / "fedfacet" / "build.py"
    theirs.parent.mkdir(parents=True)
    assert build._git_commit(theirs), "a checkout's own commit is told"

"""The locks have the versions of constraints.txt, and a sha256 of every file."""

import re

import pytest


@pytest.mark.parametrize("lock", ["requirements.lock", "deploy/requirements.lock"])
def test_both_files_name_the_same_versions(lock, checkout):
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (checkout / "constraints.txt").read_text(), re.MULTILINE))
    locked = versions(checkout / lock)
    if lock == "requirements.lock":
        assert locked.keys() >= pinned.keys()
    assert {"fedfacet", "nvflare", "torch"} & locked.keys() == {"nvflare", "torch"}
    assert {name: locked[name] for name in pinned.keys() & locked.keys()} == {
        name: pinned[name] for name in pinned.keys() & locked.keys()
    }
    more = {name for name in locked.keys() - pinned.keys() if not name.startswith("nvidia-")}  # torch pins those itself
    assert more <= {"colorama", "httpx2-jsfetch", "pywin32"}, "for Windows and for browsers"


def test_tools_are_locked(checkout):
    assert {"build", "hatchling", "pip-audit", "twine", "uv"} <= versions(checkout / "tools.lock").keys()


def versions(lock):
    entries = re.split(r"\n(?=[a-z])", lock.read_text())[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    return dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)


def test_workflows_run_actions_by_commit_and_no_tool_without_a_hash(checkout):
    for workflow in (checkout / ".github" / "workflows").glob("*.yml"):
        text = workflow.read_text()
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", used) for used in re.findall(r"uses: (.*)", text))
        assert "pipx" not in text
    for file in ("Dockerfile", "deploy/Dockerfile"):
        assert "EXTRA_INDEX" not in (checkout / file).read_text(), "a namesake in the second index could win"

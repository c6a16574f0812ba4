"""requirements.lock has the versions of constraints.txt, and a sha256 of every file."""

import re


def test_both_files_name_the_same_versions(checkout):
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (checkout / "constraints.txt").read_text(), re.MULTILINE))
    entries = re.split(r"\n(?=[a-z])", (checkout / "requirements.lock").read_text())[1:]
    locked = dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)
    assert {name: locked.get(name) for name in pinned} == pinned
    assert all("--hash=sha256:" in entry for entry in entries)
    more = {name for name in locked.keys() - pinned.keys() if not name.startswith("nvidia-")}  # torch pins those itself
    assert more == {"colorama", "httpx2-jsfetch"}, "for Windows and for browsers"

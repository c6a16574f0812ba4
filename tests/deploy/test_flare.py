"""Letters through NVIDIA FLARE: kits that let nothing else in, and a run over mutual TLS whose job is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from fedfacet import state
from fedfacet.commands import serve
from fedfacet.deploy.flare import Flare
from fedfacet.deploy.kits import prepare
from fedfacet.errors import ConfigError
from fedfacet.storage.run_files import rows_of

psutil = pytest.importorskip("psutil", reason="Windows needs it: pip install psutil")


@pytest.fixture
def kit(tmp_path):
    """The files of a kit that `nvflare provision` writes for a site, as far as they matter here."""
    local = tmp_path / "site_0" / "local"
    local.mkdir(parents=True)
    resources = {
        "class_list_enforcement_mode": "warn", "class_allow_list": ["*"], "allow_log_streaming": True,
        "components": [{"id": "process_launcher"}, {"id": "site_log_streamer"}],
    }  # fmt: skip
    rights = {"project_admin": "any", "lead": {"submit_job": "any", "byoc": "any", "shell_commands": "o:site"}}
    (local / "resources.json.default").write_text(json.dumps(resources))
    (local / "authorization.json.default").write_text(json.dumps({"permissions": rights}))
    (local / "log_config.json.default").write_text("{}")
    return tmp_path / "site_0"


def test_a_prepared_kit_lets_one_class_in_and_nobody_s_code(kit):
    prepare(kit, "fedfacet.deploy.flare_job.SiteExecutor")
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == ["fedfacet.deploy.flare_job.SiteExecutor"]
    assert resources["allow_log_streaming"] is False
    assert resources["components"] == [{"id": "process_launcher"}]
    permissions = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
    assert permissions["lead"]["submit_job"] == "any"
    assert {permissions[role].get(right, "none") for role in permissions for right in ("byoc", "shell_commands")} == {"none"}


def test_a_server_keeps_its_jobs_in_its_own_kit(kit):
    """Of two servers on a machine each would take the other's."""
    file = kit / "local" / "resources.json.default"
    resources = json.loads(file.read_text())
    resources["components"].append({"id": "job_manager", "args": {"uri_root": "/tmp/nvflare/jobs", "job_store_id": "x"}})
    resources["snapshot_persistor"] = {"args": {"storage": {"args": {"root_dir": "/tmp/nvflare/snapshots", "uri_root": "/"}}}}
    file.write_text(json.dumps(resources))
    prepare(kit, "fedfacet.deploy.flare_job.Relay")
    written = (kit / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in written
    assert json.loads(written)["components"][-1]["args"] == {"uri_root": str(kit / "jobs"), "job_store_id": "x"}
    assert json.loads(written)["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] == str(kit / "snapshots")


def test_what_is_no_kit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^Expected the kit of a server or a site, but .* cannot be read: give kit=DIR"):
        prepare(tmp_path, "x")


def test_a_missing_kit_and_a_missing_package_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"^Expected the (startup kit of an admin in .*deploy\.kit=DIR|package nvflare)"):
        Flare(kit=str(tmp_path)).sites()


PROJECT = """
api_version: 3
name: pilot
participants:
  - {{name: localhost, type: server, org: pilot, fed_learn_port: {port}, admin_port: {port}}}
  - {{name: site_0, type: client, org: a}}
  - {{name: site_1, type: client, org: b}}
  - {{name: lead@pilot.org, type: admin, org: pilot, role: lead}}
builders:
  - {{path: nvflare.lighter.impl.workspace.WorkspaceBuilder}}
  - {{path: nvflare.lighter.impl.static_file.StaticFileBuilder, args: {{config_folder: config, scheme: tcp}}}}
  - {{path: nvflare.lighter.impl.cert.CertBuilder}}
  - {{path: nvflare.lighter.impl.signature.SignatureBuilder}}
"""


@pytest.fixture
def flare(tmp_path, pilot, checkout):
    """Start FLARE's server and two sites on this machine, and return a function that starts ``serve.py`` through it."""
    pytest.importorskip("nvflare", reason="the extra `deploy` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "project.yml").write_text(PROJECT.format(port=port))
    provision = "from nvflare.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", provision, "provision", "-p", "project.yml", "-w", "kits"], cwd=tmp_path, check=True, timeout=120
    )
    kits = tmp_path / "kits" / "pilot" / "prod_00"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    running = []

    def start(name, *arguments):
        with open(tmp_path / f"{len(running)}.log", "wb") as log:
            command = [sys.executable, str(checkout / "src" / name), *arguments]
            running.append(
                subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
            )
        return running[-1], tmp_path / f"{len(running) - 1}.log"

    def start_site(site):
        return start("client.py", "start", f"config={pilot / site / 'client.yaml'}", f"kit={kits / site}")[0]

    def start_server(*overrides):
        given = f"card={pilot / 'card.yaml'}", f"roster={pilot / 'roster.yaml'}", f"deploy.kit={kits / 'lead@pilot.org'}"
        return start("serve.py", *given, "deploy=flare", *overrides)

    start("serve.py", "start", f"kit={kits / 'localhost'}")
    start_server.sites = {site: start_site(site) for site in ("site_0", "site_1")}
    start_server.start_site = start_site
    yield start_server
    for process in running:
        for pid in _with_children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def _with_children(pid):
    if not psutil.pid_exists(pid):
        return []
    process = psutil.Process(pid)
    return [*(child.pid for child in process.children(recursive=True)), pid]


@pytest.mark.slow
def test_a_run_over_flare_is_the_simulated_one_though_its_job_is_killed(flare, base, simulated, rounds_of, tmp_path):
    run_dir, longer = tmp_path / "run", "federation.rounds=8"
    settings = [*(one for one in base if not one.startswith("federation.rounds")), longer]
    for _ in range(20):  # until all of FLARE is up
        process, log = flare(*settings, f"paths.output_dir={run_dir}")
        if _until(lambda: (run_dir / "metrics.csv").exists(), 240, process=process):
            break
        time.sleep(5)
    assert _until(lambda: len(rows_of(run_dir / "metrics.csv")) >= 2, 240), log.read_text()
    for one in psutil.process_iter(["cmdline"]):
        command = " ".join(one.info["cmdline"] or ())
        if "server.runner_process" in command and str(tmp_path) in command:
            one.kill()
    assert process.wait(300) == 0, log.read_text()
    (tmp_path / "here").mkdir()
    here = simulated(longer, run_dir=tmp_path / "here")
    assert rounds_of(here, 8) == (run_dir / "metrics.csv").read_bytes()
    assert lines_in(run_dir / "journal.jsonl")[-1]["model_digest"] == state.digest(here.state.model)
    assert "the letter for client" in (run_dir / "train.log").read_text(), "the job died while letters were under way"


@pytest.mark.slow
def test_a_site_whose_flare_is_started_again_at_once_takes_part_again(flare, base, tmp_path):
    run_dir, journal = tmp_path / "run", tmp_path / "run" / "journal.jsonl"
    settings = [*(one for one in base if not one.startswith(("federation.rounds", "callbacks"))), "federation.rounds=2000"]
    for _ in range(20):  # until all of FLARE is up
        process, log = flare(*settings, "sites.deadline_seconds=3000", "callbacks=deployed", f"paths.output_dir={run_dir}")
        if _until(lambda: (run_dir / "metrics.csv").exists(), 240, process=process):
            break
        time.sleep(5)
    assert _until(lambda: len(lines_in(journal)) >= 4, 240), log.read_text()
    flare.sites["site_0"].kill()  # and nothing of what it has started
    flare.start_site("site_0")
    number = len(lines_in(journal)) + 2  # a round may be over already
    assert _until(lambda: len(lines := lines_in(journal)) > number and len(lines[-1]["available"]) == 24, 400), log.read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 128 + signal.SIGINT, log.read_text()
    assert serve.main(["replay", f"run={run_dir}"]) == 0


def lines_in(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def _until(condition, seconds, process=None):
    until = time.monotonic() + seconds
    while time.monotonic() < until and (process is None or process.poll() is None):
        if condition():
            return True
        time.sleep(0.5)
    return False

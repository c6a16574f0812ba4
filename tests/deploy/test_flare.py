"""Messages through NVIDIA FLARE: kits that let nothing else in, and a run over mutual TLS whose job is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from fedfacet import state
from fedfacet.commands import serve
from fedfacet.deploy.engine import Shortfall
from fedfacet.deploy.flare import Flare
from fedfacet.deploy.startup_kit import certificate_fault, prepare
from fedfacet.errors import ConfigError, EngineError
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


EXECUTOR = "fedfacet.deploy.flare_job.SiteExecutor"


@pytest.fixture
def local_of(kit):
    """Return a function: (file of a kit's local/, change its table) -> write the file as its operator would, changed."""

    def change(name, change):
        file = kit / "local" / name
        table = json.loads((file if file.exists() else file.with_name(f"{name}.default")).read_text())
        change(table)
        file.write_text(json.dumps(table))
        return file

    return change


def test_what_an_operator_has_tightened_stays(kit, local_of):
    """However often the kit is started, and whether before its first start or after it."""
    for _ in range(2):
        rights = local_of("authorization.json", lambda table: table["permissions"].update(project_admin={"view": "none"}))
        resources = local_of("resources.json", lambda table: table["components"][0].update(args={"num_of_gpus": 4}))
        prepare(kit, EXECUTOR)
        prepare(kit, EXECUTOR)
        never = {"byoc": "none", "shell_commands": "none", "server-predeployed-flwr": "none"}
        assert json.loads(rights.read_text())["permissions"]["project_admin"] == {"view": "none", **never}
        assert json.loads(resources.read_text())["components"] == [{"id": "process_launcher", "args": {"num_of_gpus": 4}}]


def test_files_that_need_nothing_are_left_as_they_are(kit):
    prepare(kit, EXECUTOR)
    for name in ("resources.json", "authorization.json"):
        file = kit / "local" / name
        file.write_text(json.dumps(json.loads(file.read_text())))
    before = {file.name: file.read_bytes() for file in (kit / "local").iterdir()}
    prepare(kit, EXECUTOR)
    assert {file.name: file.read_bytes() for file in (kit / "local").iterdir()} == before


@pytest.mark.parametrize(
    "rights",
    [
        "any", "o:site", ["o:a", "n:submitter"], {"*": "any"}, {"byoc": "any"}, {"BYOC": "any", "Shell_Commands": "o:site"},
        {"cat": "any", " LS ": "any"}, {"server-predeployed-flwr": "any", "byoc": "none"},
    ],
)  # fmt: skip
def test_nobody_brings_code_or_runs_commands_however_it_is_written(rights, kit, local_of):
    """By FLARE's own reading of the file."""
    policies = pytest.importorskip("nvflare.fuel.sec.authz", reason="the extra `deploy` is not installed")
    security = pytest.importorskip("nvflare.security.security")
    file = local_of("authorization.json", lambda table: table.update(format_version="1.0", permissions={"lead": rights}))

    def allowed(right):
        policy, fault = policies.parse_policy_config(json.loads(file.read_text()), security.COMMAND_CATEGORIES)
        assert not fault
        person = policies.Person("somebody", "a", "lead")
        return policy.evaluate("a", policies.AuthzContext(right, person, person))[0]

    commands = [name for name, of in security.COMMAND_CATEGORIES.items() if of == "shell_commands"]
    forbidden = ["byoc", "server-predeployed-flwr", "shell_commands", *commands]
    every = [*forbidden, "view", "operate", "submit_job", *security.COMMAND_CATEGORIES]
    assert any(map(allowed, forbidden))
    before = {right for right in every if allowed(right)}
    prepare(kit, EXECUTOR)
    assert not any(map(allowed, forbidden))
    assert {right for right in every if allowed(right)} <= before, "nothing may be done that could not be done before"


def test_a_class_that_the_operator_leaves_out_is_not_let_in(kit, local_of):
    file = local_of("resources.json", lambda table: table.update(class_allow_list=["nvflare.app_common", "fedfacet.dep"]))
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"resources.json to let FLARE build .*SiteExecutor, but .* `class_allow_list`"):
        prepare(kit, EXECUTOR)
    assert file.read_bytes() == before
    local_of("resources.json", lambda table: table.update(class_allow_list=["fedfacet.deploy"]))
    prepare(kit, EXECUTOR)
    assert json.loads(file.read_text())["class_allow_list"] == [EXECUTOR]


def test_a_server_s_own_place_for_jobs_stays_and_that_of_a_kit_that_has_moved_follows(kit, local_of, tmp_path):
    def jobs_at(place):
        job_manager = {"id": "job_manager", "args": {"uri_root": str(place)}}
        return lambda table: table.update(components=[job_manager])

    for place, stays in ((tmp_path / "disk", True), ("/tmp/nvflare/jobs-storage", False), (tmp_path / "gone" / "jobs", False)):
        file = local_of("resources.json", jobs_at(place))
        prepare(kit, EXECUTOR)
        (job_manager,) = json.loads(file.read_text())["components"]
        assert job_manager["args"]["uri_root"] == str(place if stays else kit / "jobs")


@pytest.mark.parametrize("content", ["[]", '{"components": [{}]}', '{"components": 1}', "{", '{"permissions": []}'])
def test_a_kit_of_another_shape_is_one_sentence(content, kit):
    for name in ("resources.json", "authorization.json"):
        (kit / "local" / name).write_text(content)
    with pytest.raises(
        ConfigError, match=r"^Expected .*(resources|authorization)\.json .*: (correct it, or remove it|give kit=)"
    ):
        prepare(kit, EXECUTOR)


def scope(**filters):
    return {"scopes": [{"name": "public", "properties": {}, **filters}], "default_scope": "public"}


@pytest.mark.parametrize(
    "privacy",
    [
        scope(task_result_filters=[{"name": "PercentilePrivacy", "args": {"percentile": 10}}]),
        scope(task_data_filters=[{"path": "hospital.Filter"}]),
        scope(task_result_filters=[{"args": {}}]),
    ],
)
def test_filters_that_would_not_act_are_refused(privacy, kit):
    (kit / "local" / "privacy.json").write_text(json.dumps(privacy))
    with pytest.raises(ConfigError, match=r"^Expected no filters in .*privacy\.json, .* but it has (Perc|hosp|a filter with)"):
        prepare(kit, EXECUTOR)
    assert not (kit / "local" / "resources.json").exists()


def test_a_privacy_file_without_filters_is_none_of_our_business(kit):
    (kit / "local" / "privacy.json").write_text(json.dumps(scope(task_result_filters=[])))
    prepare(kit, EXECUTOR)


def test_flare_s_filters_do_let_messages_pass():
    """As long as they do, kits that have some are refused."""
    filters = pytest.importorskip("nvflare.app_common.filters.percentile_privacy", reason="the extra `deploy` is not installed")
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    message = Shareable()
    message["letter"] = b"update"
    assert filters.PercentilePrivacy().process(message, FLContext())["letter"] == b"update"


def test_filters_that_came_after_the_start_are_refused_too(kit):
    """Where FLARE's own script has started the site."""
    job = pytest.importorskip("fedfacet.deploy.flare_job", reason="the extra `deploy` is not installed")
    from nvflare.apis.fl_constant import ReservedKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal
    from nvflare.apis.workspace import Workspace

    (kit / "startup").mkdir()
    (kit / "local" / "privacy.json").write_text(json.dumps(scope(task_result_filters=[{"name": "SVTPrivacy"}])))
    context = FLContext()
    workspace = Workspace(str(kit), "site_0")
    context.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True, sticky=False)
    reply = job.SiteExecutor().execute("letter", Shareable({"letter": b""}), context, Signal())
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert reply["fault"] == "its FLARE has filters that would not act, as `client.py start` tells its operator"


class NoClientsAvailable(Exception):
    """FLARE's, by its name."""


class InvalidJobDefinition(Exception):
    """FLARE's, by its name."""


class Session:
    """FLARE's, which answers after some faults."""

    def __init__(self, *faults):
        self.faults, self.asked = list(faults), 0

    def get_client_job_status(self):
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        return [{"client_name": "site_0", "status": "started"}]

    def close(self):
        raise RuntimeError("the session is closed on server")


@pytest.fixture
def flare_of(monkeypatch):
    """Return a function: (seconds, sessions or faults of the login) -> a transport that logs in to them in turn."""

    def make(seconds, *sessions):
        flare, sessions = Flare(start_seconds=seconds), list(sessions)

        def log_in(seconds):
            if isinstance(sessions[0], Exception):
                raise sessions.pop(0)
            return sessions.pop(0) if len(sessions) > 1 else sessions[0]

        monkeypatch.setattr(flare, "_log_in", log_in)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        return flare

    return make


BUSY = ConnectionError("cannot connect to server: ERROR_SERVER_CONNECTION")


def test_what_flare_fails_to_do_is_asked_again(flare_of):
    """In a new session, and also where that is not had at once."""
    flare = flare_of(
        60, Session(BUSY), Shortfall("it is not there"), ConfigError("it does not know us"), Session(BUSY), Session()
    )
    assert flare.sites() == {"site_0": True}


def test_flare_that_stays_away_is_a_shortfall(flare_of, capsys, monkeypatch):
    flare = flare_of(0.2, Session(*[BUSY] * 1000))
    with pytest.raises(Shortfall, match=r"^Expected FLARE to do .*`cannot connect to server.*`, for 0\.2 seconds: look at its"):
        flare.sites()
    monkeypatch.setattr("fedfacet.commands.serve._serve", lambda *_: flare.sites())
    assert serve.main(["card=a"]) == 75
    assert "cannot connect to server" in capsys.readouterr().err


def test_what_flare_has_against_a_question_is_said_at_once(flare_of):
    session = Session(InvalidJobDefinition("no such class"))
    with pytest.raises(EngineError, match=r"^Expected FLARE to do what it was asked, but it says `no such class`: look at its"):
        flare_of(60, session).sites()
    assert session.asked == 1
    with pytest.raises(ConfigError, match="who is that"):
        flare_of(60, ConfigError("who is that")).sites()


def test_no_client_at_all_is_an_answer(flare_of):
    assert flare_of(60, Session(NoClientsAvailable("no clients available"))).sites() == {}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in chain (_ssl.c:1006)", True),
        ("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired (_ssl.c:2570)", True),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2570)", True),
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)", False),
        ("Connection refused", False),
    ],
)
def test_a_certificate_that_is_not_accepted_is_named(said, told, tmp_path):
    sentence = certificate_fault(
        f"Connector [CH00001 ACTIVE] failed with exception SSLError: SSLError: {said}\nRetrying", tmp_path
    )
    assert (sentence is not None) is told
    if told:
        assert f"startup/rootCA.pem has signed, but FLARE says `{said.partition(' (')[0]}`: give the kit" in sentence


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
    provision = [sys.executable, "-c", "from nvflare.cli import main; main()", "provision", "-p", "project.yml", "-w"]
    for folder in ("kits", "others"):  # two projects that have the same names, and each its own certificates
        subprocess.run([*provision, folder], cwd=tmp_path, check=True, timeout=120)
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
    start_server.start_site, start_server.start = start_site, start
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
    assert "the message for client" in (run_dir / "train.log").read_text(), "the job died while messages were under way"


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


@pytest.mark.slow
def test_a_kit_of_another_project_is_one_sentence_that_names_the_certificate(flare, pilot, tmp_path):
    others = tmp_path / "others" / "pilot" / "prod_00"
    started, log_of_site = flare.start(
        "client.py", "start", f"config={pilot / 'site_0' / 'client.yaml'}", f"kit={others / 'site_0'}"
    )
    admin, log = flare(
        f"deploy.kit={others / 'lead@pilot.org'}", "deploy.start_seconds=30", f"paths.output_dir={tmp_path / 'run'}"
    )
    sentence = "startup/rootCA.pem has signed, but FLARE says `[SSL: CERTIFICATE_VERIFY_FAILED]"
    assert admin.wait(240) == 2, log.read_text()
    errors = [
        line for line in log.read_text().splitlines() if line.startswith("error: ")
    ]  # a thread of FLARE's may speak later
    assert len(errors) == 1, errors
    assert sentence in errors[0]
    assert _until(lambda: f"kit {others / 'site_0'} to hold" in log_of_site.read_text(), 100), log_of_site.read_text()
    assert sentence in log_of_site.read_text()
    assert started.poll() is None, "FLARE tries again"


def lines_in(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def _until(condition, seconds, process=None):
    until = time.monotonic() + seconds
    while time.monotonic() < until and (process is None or process.poll() is None):
        if condition():
            return True
        time.sleep(0.5)
    return False

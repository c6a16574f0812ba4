"""deploy/compose.yaml: what its containers run is what the command line takes, on files that are where it says."""

import shlex
from pathlib import Path, PurePosixPath

import pytest
import yaml

from fedfacet.commands.client import USAGE
from fedfacet.config import compose_job
from fedfacet.deploy.settings import SiteSettings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SITES = sorted(name for name in SERVICES if name.startswith("site_"))


@pytest.fixture
def outside(pilot):
    """Return a function: (service, path in its container) -> where the machine has it."""

    def of(service, path):
        for mounted in SERVICES[service]["volumes"]:
            here, there = mounted.split(":")[:2]
            if PurePosixPath(path).is_relative_to(there):
                file = PurePosixPath(here) / PurePosixPath(path).relative_to(there)
                return pilot / file.relative_to("pilot") if file.is_relative_to("pilot") else ROOT / "deploy" / file
        raise AssertionError(f"{path} is on no volume of {service}")

    return of


def arguments(service):
    """What a service's command gives, key -> value."""
    return dict(word.partition("=")[::2] for word in shlex.split(SERVICES[service]["command"]) if "=" in word)


def test_every_part_has_a_kit_of_the_project():
    project = yaml.safe_load((ROOT / "deploy" / "project.yml").read_text())
    kits = {name: parts["volumes"][0].partition(":")[0] for name, parts in SERVICES.items()}
    assert sorted(Path(kit).name for kit in kits.values()) == sorted(one["name"] for one in project["participants"])
    assert {str(Path(kit).parent) for kit in kits.values()} == {f"kits/{project['name']}/prod_00"}
    (server,) = (one for one in project["participants"] if one["type"] == "server")
    assert server["name"] in SERVICES, "sites reach it by this name"
    assert SERVICES[server["name"]]["ports"] == [f"{server['fed_learn_port']}:{server['admin_port']}"]


@pytest.mark.parametrize("service", SITES)
def test_a_site_finds_its_settings_its_card_and_its_data(service, outside):
    command = shlex.split(SERVICES[service]["command"])
    assert command[:2] == ["client", "start"]
    assert "start config=FILE kit=DIR" in USAGE
    asked = arguments(service)
    settings = SiteSettings.read(outside(service, asked["config"]))
    assert settings.site == service
    inside = PurePosixPath(asked["config"]).parent
    held = [held.folder / held.options["file"] for held in settings.clients.values()]
    for path in (settings.card, settings.state, *held):
        relative = path.relative_to(outside(service, asked["config"]).parent)
        named = PurePosixPath(*_plain((inside / relative).parts))
        assert outside(service, named).resolve() == path.resolve()


def _plain(parts):
    """Take `..` out of a path, as a container's file system does."""
    kept = []
    for part in parts:
        kept = kept[:-1] if part == ".." else [*kept, part]
    return kept


def test_the_server_s_command_composes_and_its_files_are_there(outside):
    command = shlex.split(SERVICES["serve"]["command"])
    asked = arguments("serve")
    assert command[0] == "serve"
    config, _ = compose_job("serve", [word for word in command[1:] if not word.startswith("resume=")])
    assert (config.choices.deploy, config.choices.experiment) == ("flare", "digits_gsc")
    assert asked["resume"] == "auto", "a container that is started again goes on"
    for key in ("card", "roster"):
        assert outside("serve", asked[key]).exists()
    assert outside("serve", asked["paths.output_dir"]) == ROOT / "deploy" / "runs" / "pilot"


def test_serve_and_flare_s_job_share_the_folder_of_their_socket():
    folders = [[one for one in SERVICES[name]["volumes"] if one.endswith(":/pipe")] for name in ("serve", "server")]
    assert folders[0] == folders[1] != []
    assert SERVICES["serve"]["environment"]["TMPDIR"] == "/pipe"

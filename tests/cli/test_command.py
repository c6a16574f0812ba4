"""The command of an installed package."""

import os
import subprocess
import sys
import sysconfig

import pytest

from fedfacet import __version__
from fedfacet.__main__ import main


def test_it_says_what_it_can_do(capsys):
    assert main([]) == main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: fedfacet train|tune|describe|report|attack|serve|client ARGS")
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == (
        "error: Expected one of the commands train, tune, describe, report, attack, serve and client, but got 'trian': did you "
        "mean train?\n"
    )


def test_it_says_which_version_it_is(monkeypatch, capsys):
    assert main(["--version"]) == 0
    monkeypatch.setattr(sys, "argv", ["fedfacet", "train", "--version"])
    assert main(["train", "--version"]) == 0
    assert capsys.readouterr().out == f"fedfacet {__version__}\n" * 2


def test_its_commands_call_themselves_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedfacet", "describe", "--help"])
    assert main(["describe", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: fedfacet describe partition=NAME")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedfacet", "attack", "--help"])
    assert main(["attack", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: fedfacet attack run=DIR")


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder_with_options_of_ones_own(checkout, tmp_path):
    environment, work, own = tmp_path / "environment", tmp_path / "work", tmp_path / "own" / "selector"
    for folder in (work, own):
        folder.mkdir(parents=True)
    (own / "mine.yaml").write_text("_target_: fedfacet.selectors.uniform.UniformSelector\n")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=checkout, check=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    packages = environment / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    (wheel,) = tmp_path.glob("*.whl")
    install = ["-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", wheel]
    subprocess.run([environment / "bin" / "python", *install], check=True)

    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def command(*arguments):
        started = [environment / "bin" / "fedfacet", *arguments]
        return subprocess.run(started, cwd=work, env=clean, capture_output=True, text=True, timeout=300)

    searchpath = f"hydra.searchpath=[file://{own.parent}]"
    trained = command("train", searchpath, "selector=mine", "debug=smoke", "threads=1", "paths.output_dir=run")
    assert trained.returncode == 0, trained.stderr
    assert (work / "run" / "summary.json").exists()
    refused = command("train", "resume=run")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "usage: fedfacet train" in command("train", "--help").stdout
    assert command("describe", "partition=gsc").returncode == 0

"""Yaml files of run folders."""

import itertools
import string

import pytest
from omegaconf import OmegaConf

from fedfacet.analysis.runs import load_run
from fedfacet.config.nodes import load_sealed_list, load_yaml, sealed_list
from fedfacet.errors import CheckpointError, FedFacetError
from fedfacet.runs import run as runs


@pytest.mark.parametrize("content", [{"seed": 0, "lr": 1e-5, "list": [1, None, "1e3"], "a": "*b"}, ["a=1", "+b=2"], {}])
def test_what_omegaconf_has_written_comes_back(tmp_path, content):
    OmegaConf.save(OmegaConf.create(content), tmp_path / "config.yaml")
    assert load_yaml(tmp_path / "config.yaml") == OmegaConf.create(content)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path):
    """Nine to the power of 26 entries."""
    names = string.ascii_lowercase
    lines = ["a: &a [" + "1, " * 9 + "]"]
    lines += [f"{name}: &{name} [{f'*{before}, ' * 9}]" for before, name in itertools.pairwise(names)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(CheckpointError, match="stands for another"):
        load_yaml(tmp_path / "config.yaml")
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        load_sealed_list(tmp_path / "config.yaml")
    with pytest.raises(FedFacetError, match=r"config\.yaml"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        _ = runs.load_run(tmp_path).config


def test_no_flipped_bit_and_no_lost_line_changes_what_a_resume_reads(tmp_path):
    overrides = ["federation.rounds=4", "+name=é", "model.width=2"]
    file = tmp_path / "overrides.yaml"
    content = sealed_list(overrides).encode()
    lines = content.splitlines(keepends=True)
    changed = [b"".join(lines[:number] + lines[number + 1 :]) for number in range(1, len(lines))]
    for bit in range(8 * len(content)):
        changed.append(bytearray(content))
        changed[-1][bit // 8] ^= 1 << bit % 8
    refused = 0
    for one in changed:
        file.write_bytes(one)
        try:
            read = load_sealed_list(file)
        except CheckpointError as error:
            refused += str(file) in str(error)
        else:
            pytest.fail(f"{one} is read as {read}")
    assert refused == len(changed)
    file.write_text("".join(f"- {one}\n" for one in overrides), encoding="utf-8")  # as older versions wrote it
    assert load_sealed_list(file) == overrides

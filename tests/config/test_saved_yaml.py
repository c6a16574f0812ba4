"""Yaml files of run folders."""

import itertools
import string

import pytest
from omegaconf import OmegaConf

from fedfacet.analysis.runs import load_run
from fedfacet.config.resuming import _overrides_in
from fedfacet.config.saved_yaml import load_yaml
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
        _overrides_in(tmp_path / "config.yaml")
    with pytest.raises(FedFacetError, match=r"config\.yaml"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        _ = runs.load_run(tmp_path).config

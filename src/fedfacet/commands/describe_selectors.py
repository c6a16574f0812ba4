"""The taxonomy of every option of ``conf/selector``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedfacet.analysis.terminal import Told
from fedfacet.config import conf_dir
from fedfacet.errors import ConfigError
from fedfacet.papers.thesis.taxonomy import remarks, tables_of


def tell(options: Sequence[str]) -> Told:
    """Return the six fields of each selector."""
    if list(options) not in ([], ["output=text"], ["output=json"]):
        raise ConfigError(f"Expected output=text or output=json after `selectors`, but got {' '.join(options)}: leave it out.")
    files = sorted((conf_dir() / "selector").glob("*.yaml"))
    classes: dict[str, Any] = {file.stem: get_class(str(OmegaConf.select(OmegaConf.load(file), "_target_"))) for file in files}
    taxonomies = {name: asdict(selector.taxonomy) for name, selector in classes.items()}
    return Told("json" if "output=json" in options else "text", taxonomies, tables_of(taxonomies), remarks=remarks())

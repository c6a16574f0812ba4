"""All selectors in the taxonomy of client selection: the thesis' table 4 for what there is."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedfacet.analysis.terminal import TextTable, Told
from fedfacet.config import conf_dir
from fedfacet.errors import ConfigError
from fedfacet.selectors.base import CHARACTERISTICS

COLUMNS = (
    *("selector", "policy", "client", "shared information"),
    *("value generation", "value interpretation", "termination condition"),
)


def tell(options: Sequence[str]) -> Told:
    """Return the six fields of ``Taxonomy`` of every option of ``conf/selector``."""
    if list(options) not in ([], ["output=text"], ["output=json"]):
        raise ConfigError(f"Expected output=text or output=json after `selectors`, but got {' '.join(options)}: leave it out.")
    files = sorted((conf_dir() / "selector").glob("*.yaml"))
    classes: dict[str, Any] = {file.stem: get_class(str(OmegaConf.select(OmegaConf.load(file), "_target_"))) for file in files}
    taxonomies = {name: asdict(selector.taxonomy) for name, selector in classes.items()}
    rows = [
        [name, *(", ".join(field) if isinstance(field, tuple) else field for field in fields.values())]
        for name, fields in taxonomies.items()
    ]
    table = TextTable("Selectors in the taxonomy of client selection (thesis, table 4)", COLUMNS, rows, words=True)
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in CHARACTERISTICS.items())
    remarks = [
        f"client: what the method as published requires of clients: {letters}.",
        "θ: weights, |D|: number of samples. Here a run ends after federation.rounds, or when termination= says so.",
    ]
    return Told("json" if "output=json" in options else "text", taxonomies, [table], remarks=remarks)

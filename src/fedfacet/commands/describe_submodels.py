"""All ways to choose the parts of smaller models, in the thesis' taxonomy of chapter 4."""

from collections.abc import Sequence
from dataclasses import asdict, fields

from omegaconf import OmegaConf

from fedfacet.analysis.writers import Table
from fedfacet.commands.output import Output
from fedfacet.config import conf_dir, make
from fedfacet.errors import ConfigError
from fedfacet.submodels.base import Taxonomy

COLUMNS = ("submodel", "code", "grouping", "dynamics", "policy", "known as", "same set again, in rounds")


def run(options: Sequence[str]) -> Output:
    """Return the fields of ``Taxonomy`` of every option of ``conf/submodel`` but ``whole``, as it is set there."""
    if list(options) not in ([], ["output=text"], ["output=json"]):
        raise ConfigError(f"Expected output=text or output=json after `submodels`, but got {' '.join(options)}: leave it out.")
    files = sorted((conf_dir() / "submodel").glob("*.yaml"))
    submodels = {file.stem: make(OmegaConf.load(file)) for file in files}  # type: ignore[arg-type]  # no list
    nothing = Taxonomy(*("-" for _ in fields(Taxonomy)))
    taxonomies = {name: asdict(part.taxonomy or nothing) for name, part in submodels.items() if part is not None}
    rows = [[name, *of.values()] for name, of in taxonomies.items()]
    table = Table("Which part of the model a client holds, in the thesis' taxonomy (figure 8)", COLUMNS, rows, words=True)
    remarks = [
        "code: O one set for all, G groups, U a set each; F fixed sets, S sets of every round; M sub-matrix, R random.",
        "Holders of fixed sets change in every round; submodel.membership=fixed has them stay.",
    ]
    return Output("json" if "output=json" in options else "text", taxonomies, [table], remarks=remarks)

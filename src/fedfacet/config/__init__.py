"""Composing and checking a configuration before anything is written.

With ``build.py`` and the scripts in ``src/`` the only room that sees a config.
"""

from fedfacet.config.checks import check_arguments, check_saved
from fedfacet.config.command_line import preflight, shown
from fedfacet.config.compose import compose_job, finalized, make, purposes, quoted_options
from fedfacet.config.composition import conf_dir
from fedfacet.config.nodes import override_of, plain, targets
from fedfacet.config.resuming import (
    SETTLED,
    carried_over,
    check_links,
    check_new,
    check_resumable,
    check_resume,
    differing_key,
    ended_before,
    is_complete,
)
from fedfacet.config.sweeping import cell_digest, check_job, is_cell
from fedfacet.config.trust import check_trusted, needed_to_resume, without_downloads

__all__ = [
    "SETTLED",
    "carried_over",
    "cell_digest",
    "check_arguments",
    "check_job",
    "check_links",
    "check_new",
    "check_resumable",
    "check_resume",
    "check_saved",
    "check_trusted",
    "compose_job",
    "conf_dir",
    "differing_key",
    "ended_before",
    "finalized",
    "is_cell",
    "is_complete",
    "make",
    "needed_to_resume",
    "override_of",
    "plain",
    "preflight",
    "purposes",
    "quoted_options",
    "shown",
    "targets",
    "without_downloads",
]  # fmt: skip

"""Every option with a published rule says what that rule was compared with, and its docstring says the same."""

import inspect
import re

import pytest
from hydra.utils import get_object

from fedfacet.analysis.names import CHECKED, option_checked
from fedfacet.config import conf_dir

GROUPS = (
    *("aggregator", "attack", "correction", "loss", "objective", "personal"),
    *("privacy", "selector", "submodel", "transforms"),
)
OPEN = re.compile(r"(?:not|neither|nor)\b[^.]*\b(?:checked\s+against|compared\s+with)|was\s+not\s+read", re.IGNORECASE)
OF_OTHERS = {"objective=next_token"}
"""Options whose source is named for reading, while the rule is common knowledge."""


def _published():
    for group in GROUPS:
        for file in sorted((conf_dir() / group).glob("*.yaml")):
            target = re.search(r"_target_: (fedfacet\.\S+)", file.read_text())
            doc = inspect.getdoc(get_object(target[1])) or "" if target and f"{group}={file.stem}" not in OF_OTHERS else ""
            if re.search(r"^Source:", doc, re.MULTILINE):
                yield pytest.param(group, file.stem, doc, id=f"{group}={file.stem}")


@pytest.mark.parametrize(("group", "option", "doc"), list(_published()))
def test_it_says_what_its_rule_was_compared_with(group, option, doc):
    checked = option_checked(group, option)
    assert checked in CHECKED, f"say `# Checked: {' | '.join(CHECKED)}` above the first key of conf/{group}/{option}.yaml"
    expected = {"paper": False, "none": True}.get(checked)
    assert expected in (None, bool(OPEN.search(doc))), "its docstring and its `# Checked:` say different things of the paper"


def test_every_word_of_it_is_known():
    files = conf_dir().glob("*/*.yaml")
    said = {line.removeprefix("# Checked: ") for file in files for line in file.read_text().splitlines() if "# Checked" in line}
    assert said <= set(CHECKED)

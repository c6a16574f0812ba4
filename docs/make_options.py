"""The pages of all options, made from ``conf/`` and from the docstrings of what its yamls name.

``PYTHONPATH=src python docs/make_options.py`` writes ``docs/options.md`` and a page per group into ``docs/options/``.
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from fedfacet.analysis.names import CHECKED, option_checked
from fedfacet.config import conf_dir, purposes

MADE = "<!-- Made by `PYTHONPATH=src python docs/make_options.py` from conf/ and docstrings; do not edit it by hand. -->"
HEAD = f"""# Options

{MADE}

A run takes one option of each group, as `GROUP=OPTION`, and any number of settings, as `KEY=VALUE`:
`python src/train.py selector=pow_d selector.num_candidates=12`. Each group has a page with its options and their settings.
[Settings of the scripts](options/scripts.md) belong to no group.

A default in the tables is that of the option's file. A recipe (`experiment=`) may set another one, and `--cfg job` prints what
holds. On the pages, each title links to the option's file.
"""
SHARED = """## Shared settings

Several options above have these settings. Each option names those that it has, with its default. A meaning that begins with
the names of options is theirs.
"""
_LONGEST_DEFAULT = 60
_Row = tuple[str, str, str]
"""A setting's key, default and meaning."""


def option_pages() -> dict[str, str]:
    """Return each page as Markdown, by its path in ``docs/``.

    Groups are in the order of ``conf/train.yaml``, whose comments say what each is for. What an option is comes from the first
    paragraph of its class and from the head of its yaml, what a setting means from ``Args:`` and from the comment on its line.
    """
    conf = conf_dir()
    told = purposes()
    found = sorted(path.name for path in conf.iterdir() if path.is_dir() and any(path.glob("*.yaml")))
    names = [name for name in dict.fromkeys([*told, *found]) if name != "hydra"]
    files = sorted(conf.glob("*.yaml"))[::-1]
    scripts = [f"## `src/{file.stem}.py`\n\n{_settings_table(_settings(file, ''))}" for file in files]
    pages = {"options.md": "\n".join([HEAD, *(_entry(name, told.get(name, "")) for name in names), ""])}
    pages["options/scripts.md"] = "\n".join([f"# Settings of the scripts\n\n{MADE}\n", *scripts])
    return pages | {f"options/{name}.md": _group(name, told.get(name, "")) for name in names}


def _entry(name: str, purpose: str) -> str:
    """Return a group's line on the first page."""
    files = _options(name)
    links = [f"[`{file.stem}`](options/{name}.md#{name}{file.stem})" for file in files]
    options = [f"`{file.stem}`" for file in files] if _are_recipes(files) else links
    said = f": {_markdown(purpose)}. Options: " if purpose else ": "
    return f"- [**{name}**](options/{name}.md){said}{', '.join(options)}."


def _group(name: str, purpose: str) -> str:
    """Return a group's page; what several of its options say word for word of a setting stands there once, at the end."""
    files = _options(name)
    head = [f"# {name}\n\n{MADE}\n", *([f"{_markdown(purpose[0].upper() + purpose[1:])}.\n"] if purpose else [])]
    if _are_recipes(files):
        rows = [(f"[`{file.stem}`](../../conf/{name}/{file.name})", _cell(_head(file)), _chosen(file)) for file in files]
        return "\n".join([*head, _table(("option", "what it is", "what it chooses"), rows)])
    settings = {file: _settings(file, f"{name}.") for file in files}
    told = Counter((key, meaning) for rows in settings.values() for key, _, meaning in rows)
    shared = {row for row, times in told.items() if times > 1}
    parts = [_option(name, file, rows, shared) for file, rows in settings.items()]
    return "\n".join([*head, *parts, *([SHARED, _shared_table(settings, shared)] if shared else [])])


def _options(group: str) -> list[Path]:
    return sorted((conf_dir() / group).glob("*.yaml"))


def _are_recipes(files: Sequence[Path]) -> bool:
    """Return whether a group's options choose options of other groups, and have no settings."""
    return any("@package _global_" in file.read_text() for file in files)


def _option(group: str, file: Path, rows: Sequence[_Row], shared: set[tuple[str, str]]) -> str:
    target = re.search(r"_target_: (fedfacet\.\S+)", file.read_text())  # others' docstrings change with their release
    doc = inspect.getdoc(get_object(target[1])) or "" if target else ""
    title = f"## [`{group}={file.stem}`](../../conf/{group}/{file.name})"
    what, source, head = doc.split("\n\n")[0], _source(doc), _head(file)
    checked = option_checked(group, file.stem)
    compared = f"Compared with: {CHECKED[checked]}." if checked else ""
    parts = [title, _markdown(what), _markdown(head) if _adds(head, f"{what} {source}") else "", source, compared]
    own = [row for row in rows if (row[0], row[2]) not in shared]
    others = [f"{key} = {default}" for key, default, meaning in rows if (key, meaning) in shared]
    also = f"[Shared settings](#shared-settings): {', '.join(others)}." if others else ""
    return "\n\n".join(filter(None, [*parts, _settings_table(own).rstrip(), also])) + "\n"


def _shared_table(settings: Mapping[Path, Sequence[_Row]], shared: set[tuple[str, str]]) -> str:
    """Return the table of what several options say of a setting; where they say different things, with their names."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for file, rows in settings.items():
        for key, default, meaning in rows:
            if (key, meaning) in shared:
                found.setdefault(key, {}).setdefault(meaning, {})[f"`{file.stem}`"] = default
    lines = []
    for key, meanings in found.items():
        for meaning, defaults in meanings.items():
            default = next(iter(defaults.values())) if len(set(defaults.values())) == 1 else "by option"
            usual = len(meanings) == 1 or 2 * len(defaults) > len(settings)
            lines.append((key, default, meaning if usual else f"{', '.join(defaults)}: {meaning}"))
    return _settings_table(lines)


def _source(doc: str) -> str:
    """Return the paragraph on the source, or the papers that are named elsewhere in a docstring."""
    if paragraph := re.search(r"^Source:\s*(.*?)(?=\n\n|\Z)", doc, re.MULTILINE | re.DOTALL):
        return f"Source: {_markdown(paragraph[1]).split('. ')[0].removesuffix('.')}."
    papers = dict.fromkeys(re.findall(r"arXiv:[\d.]+\d", doc))
    return f"Papers: {_markdown(', '.join(papers))}." if papers else ""


def _settings(file: Path, prefix: str) -> list[_Row]:
    comments, rows = _comments(file), []
    for key, value, arguments in _leaves(OmegaConf.to_container(OmegaConf.load(file), resolve=False), "", {}):
        default = value if isinstance(value, str) else json.dumps(value)
        argument, comment = arguments.get(key.rpartition(".")[2], ""), comments.get(key, "")
        meaning = filter(None, [argument.removesuffix("."), comment if _adds(comment, argument) else ""])
        shown = f"`{default}`" if len(default) <= _LONGEST_DEFAULT else "in the file"
        rows.append((f"`{prefix}{key}`", _cell(shown), _cell("; ".join(meaning))))
    return rows


def _settings_table(rows: Sequence[_Row]) -> str:
    return _table(("setting", "default", "meaning"), rows)


def _leaves(node: Any, path: str, arguments: Mapping[str, str]) -> Iterator[tuple[str, Any, Mapping[str, str]]]:
    """Yield every setting below a node, with what the docstring of the nearest target says of its arguments."""
    if not isinstance(node, dict) or (path and not node):
        yield path, node, arguments
        return
    if "_target_" in node:
        arguments = _arguments(node["_target_"])
    for key, value in node.items():
        if key not in ("_target_", "_partial_", "defaults", "hydra"):
            yield from _leaves(value, f"{path}.{key}" if path else key, arguments)


def _arguments(target: str) -> dict[str, str]:
    """Return what a class and its bases, or a function, say of each argument."""
    found: dict[str, str] = {}
    target_object = get_object(target) if target.startswith("fedfacet.") else None
    for part in reversed(getattr(target_object, "__mro__", [target_object])):
        doc = inspect.cleandoc(part.__doc__ or "") if part and part.__module__.startswith("fedfacet") else ""
        for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", doc, re.MULTILINE):
            found |= dict(re.findall(r"^    (\w+): (.*(?:\n(?:     .*)?)*)", section, re.MULTILINE))
    return {name: " ".join(text.split()) for name, text in found.items()}


def _comments(file: Path) -> dict[str, str]:
    """Return the comment on the line of each key, by the key's whole path."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        if match := re.match(r"( *)([\w@.]+):(?: .*?)??(?: # (.*))?$", line):
            above = [(indent, key) for indent, key in above if indent < len(match[1])] + [(len(match[1]), match[2])]
            found[".".join(key for _, key in above)] = match[3] or ""
    return found


def _head(file: Path) -> str:
    """Return the comment above a yaml's first key, up to its command."""
    above = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    lines = takewhile(lambda line: not line.startswith("# Command:"), above)
    told = (line for line in lines if line != "# @package _global_" and not line.startswith(("# Name: ", "# Checked: ")))
    return " ".join(line[2:].strip() for line in told).removeprefix("Source: ")


def _chosen(file: Path) -> str:
    """Return the options that a recipe or a row of a table chooses."""
    chosen = re.findall(r"^  - override /(\w+): \"?([^\"#\n]+?)\"?(?: #.*)?$", file.read_text(), re.MULTILINE)
    return " ".join(f"`{group}={option}`" for group, option in chosen)


def _adds(text: str, known: str) -> bool:
    """Return whether at least half of a text's words are new; what says the same in other words is left out."""
    words, old = (set(re.findall(r"\w+", part.lower())) for part in (text, known))
    return bool(words) and 2 * len(words - old) >= len(words)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows] if rows else []
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *([""] if rows else [])])


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|")


def _markdown(text: str) -> str:
    """Return reStructuredText as Markdown on one line, with links to what has an address."""
    text = " ".join(text.split())
    text = re.sub(r"(?<![`\w])(_\w+_)(?![`\w])", r"`\1`", text)  # _self_ is no emphasis
    text = re.sub(r":math:`(.*?)`", r"$\1$", text).replace("``None``", "``null``")
    text = re.sub(r"``\"?(.*?)\"?``", r"`\1`", text)
    text = re.sub(r"(?<!\[)arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"(?<![/\w.])(github\.com/[\w./-]*\w)", r"[\1](https://\1)", text)


if __name__ == "__main__":
    docs = Path(__file__).parent
    pages = option_pages()
    for old in set(docs.glob("options/*.md")) - {docs / name for name in pages}:
        old.unlink()
    (docs / "options").mkdir(exist_ok=True)
    for name, page in pages.items():
        (docs / name).write_text(page)

"""The page of all options, made from ``conf/`` and from the docstrings of what its yamls name.

``PYTHONPATH=src python docs/make_options.py > docs/options.md`` renews the page.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from fedfacet.config import conf_dir, purposes

HEAD = """# Options

<!-- Made by `python docs/make_options.py > docs/options.md` from conf/ and docstrings; do not edit it by hand. -->

A run takes one option of each group, as `GROUP=OPTION`, and any number of settings, as `KEY=VALUE`:
`python src/train.py selector=pow_d selector.num_candidates=12`. A default in the tables is that of the option's file; a recipe
(`experiment=`) may set another one, and `--cfg job` prints what holds. Each title links to the option's file.
"""
_LONGEST_DEFAULT = 60


def options_page() -> str:
    """Return the page as Markdown.

    Groups are in the order of ``conf/train.yaml``, whose comments say what each is for. What an option is comes from the first
    paragraph of its class and from the head of its yaml, what a setting means from ``Args:`` and from the comment on its line.
    """
    conf = conf_dir()
    told = purposes()
    found = sorted(path.name for path in conf.iterdir() if path.is_dir() and any(path.glob("*.yaml")))
    names = [name for name in dict.fromkeys([*told, *found]) if name != "hydra"]
    contents = ", ".join(f"[`{name}`](#{name})" for name in names)
    scripts = [f"## Settings of `src/{file.stem}.py`\n\n{_settings(file, '')}" for file in sorted(conf.glob("*.yaml"))[::-1]]
    return "\n".join([HEAD, f"Groups: {contents}.\n", *scripts, *(_group(name, told.get(name, "")) for name in names)])


def _group(name: str, purpose: str) -> str:
    files = sorted((conf_dir() / name).glob("*.yaml"))
    if any("@package _global_" in file.read_text() for file in files):
        rows = [(f"[`{file.stem}`](../conf/{name}/{file.name})", _cell(_head(file)), _chosen(file)) for file in files]
        parts = [_table(("option", "what it is", "what it chooses"), rows)]
    else:
        parts = [_option(name, file) for file in files]
    return "\n".join([f"## {name}\n", *([f"{_markdown(purpose[0].upper() + purpose[1:])}.\n"] if purpose else []), *parts])


def _option(group: str, file: Path) -> str:
    target = re.search(r"_target_: (fedfacet\.\S+)", file.read_text())  # others' docstrings change with their release
    doc = inspect.getdoc(get_object(target[1])) or "" if target else ""
    title = f"### [`{group}={file.stem}`](../conf/{group}/{file.name})"
    what, source, head = doc.split("\n\n")[0], _source(doc), _head(file)
    parts = [title, _markdown(what), _markdown(head) if _adds(head, f"{what} {source}") else "", source]
    return "\n\n".join(filter(None, [*parts, _settings(file, f"{group}.")])).rstrip() + "\n"


def _source(doc: str) -> str:
    """Return the paragraph on the source, or the papers that are named elsewhere in a docstring."""
    if paragraph := re.search(r"^Source:\s*(.*?)(?=\n\n|\Z)", doc, re.MULTILINE | re.DOTALL):
        return f"Source: {_markdown(paragraph[1]).split('. ')[0].removesuffix('.')}."
    papers = dict.fromkeys(re.findall(r"arXiv:[\d.]+\d", doc))
    return f"Papers: {_markdown(', '.join(papers))}." if papers else ""


def _settings(file: Path, prefix: str) -> str:
    """Return the table of each setting's key, default and meaning."""
    comments, rows = _comments(file), []
    for key, value, arguments in _leaves(OmegaConf.to_container(OmegaConf.load(file), resolve=False), "", {}):
        default = value if isinstance(value, str) else json.dumps(value)
        argument, comment = arguments.get(key.rpartition(".")[2], ""), comments.get(key, "")
        meaning = filter(None, [argument.removesuffix("."), comment if _adds(comment, argument) else ""])
        shown = f"`{default}`" if len(default) <= _LONGEST_DEFAULT else "in the file"
        rows.append((f"`{prefix}{key}`", _cell(shown), _cell("; ".join(meaning))))
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
    return " ".join(line[2:].strip() for line in lines if line != "# @package _global_").removeprefix("Source: ")


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
    text = re.sub(r":math:`(.*?)`", r"$\1$", text).replace("``None``", "``null``")
    text = re.sub(r"``\"?(.*?)\"?``", r"`\1`", text)
    text = re.sub(r"(?<!\[)arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"(?<![/\w.])(github\.com/[\w./-]*\w)", r"[\1](https://\1)", text)


if __name__ == "__main__":
    print(options_page(), end="")

"""How the prose reads: pages that are rewritten keep every rule, and no other page, docstring or message gets worse.

``python tests/docs/test_prose.py PAGE`` prints what breaks a rule there. ``--record`` writes the counts of ``prose.json``, to
be committed with the change that made a page better.
"""

import ast
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("prose.json")

_PATTERNS = ("*.md", "docs/**/*.md", "results/**/*.md", "notebooks/*.md", "data/*.md", "benchmarks/*.md")
_NO_PROSE = {"options.md", "options", "index.md", "CHANGELOG.md"}  # made of docstrings; a table of contents; a list

PAGES = [
    page.relative_to(ROOT).as_posix()
    for pattern in _PATTERNS
    for page in sorted(ROOT.glob(pattern))
    if not {page.name, page.parent.name} & _NO_PROSE
]
STRICT = [page for page in PAGES if page in ("README.md", "results/README.md") or page.startswith("docs/tutorials/")]
"""Pages that keep every rule."""
OPENINGS = [page for page in PAGES if re.fullmatch(r"results/(?!README)\w+\.md", page)]
"""Pages whose title and first paragraph keep every rule."""

MOST_WORDS, MOST_ON_AVERAGE, MOST_RELATIVE = 25, 17, 1.5  # words a sentence; relative clauses per 100 words
BANNED = {
    r"\bwhoever\b": "if you, or a client that",
    r"\bnobody\b": "no client",
    r"\beverybody\b": "all clients",
    r"\w+ alone\b": "only X",
    r"\b(goes|go|went) on\b": "resumes, or continues",
    r"\bcomes? to\b": "is",
    r"\bcomes? out\b": "is",
    r"\blies\b": "is stored",
    r"\bis (told|said)\b": "prints, or reports",
    r"\bcosts one sentence\b": "fails with a one-sentence error",
    r"\bis refused\b": "is rejected",
    r"\bheld to\b": "must satisfy",
    r"\bbut for\b": "except",
    r"\bat one blow\b": "atomically",
    r"\bof (its|their) own\b": "its",
    r"\blets? expect\b": "would predict",
    r"\banew\b": "again",
    r"\bmend(s|ed)?\b": "fix",
    r"\bin (the )?place of\b": "instead of",
    r"\bseparated\b": "significant (p = ...)",
    r"\blevel with\b": "not significantly different from",
    r"\bturned round\b": "reversed",
    r"\bphones?\b": "simulated device",
    r"\bletters?\b": "message",
}
"""What is not written, and what is."""

_TWO_COLONS = "two of ; and :"
_NO_REMEDY = "no remedy"
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|etc|Fig|No|approx)\.", re.IGNORECASE)
_RELATIVE = re.compile(r"\b(that|which|who|whose|what)\b", re.IGNORECASE)


def prose_of(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of Markdown without code, tables and pictures; code spans become a word."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[ ]*$|\$\$.*?\$\$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|^ *\|.*$|^#.*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``.+?``|`[^`]+`|:\w+:`[^`]+`", "Code", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        joined = " ".join(re.sub(r"^\s*(?:[-*>]|\d+\.) ", "", paragraph).replace("**", "").replace("*", "").split())
        if joined:
            yield joined


def sentences_of(text: str) -> list[str]:
    """Return the sentences of Markdown."""
    found = []
    for paragraph in prose_of(text):
        safe = _ABBREVIATIONS.sub(lambda match: match[0].replace(".", "\0"), paragraph)
        found += [one.replace("\0", ".") for one in re.split(r"(?<=[.!?])[\"')]?\s+(?=[\"'(]?[A-Z0-9])", safe)]
    return found


def words_of(sentence: str) -> int:
    """Count words: numbers and symbols that stand by themselves are none."""
    return len(re.findall(r"[A-Za-z][\w'-]*", sentence))


def broken(text: str) -> list[tuple[str, str]]:
    """Return each rule that a sentence breaks, with the sentence."""
    found = []
    for sentence in sentences_of(text):
        if words_of(sentence) > MOST_WORDS:
            found.append(("more than 25 words", sentence))
        if len(re.findall(r"[;:](?=\s)", sentence)) > 1:
            found.append((_TWO_COLONS, sentence))
        found += [
            (f"{pattern}: write {better!r}", sentence)
            for pattern, better in BANNED.items()
            for match in [re.search(pattern, sentence, re.IGNORECASE)]
            if match
        ]
    return found


def averages(text: str) -> list[str]:
    """Return what is wrong with a page as a whole."""
    sentences = sentences_of(text)
    words = sum(map(words_of, sentences))
    if not words:
        return []
    mean, relative = words / len(sentences), 100 * sum(len(_RELATIVE.findall(one)) for one in sentences) / words
    return [
        *([f"{mean:.1f} words a sentence, at most {MOST_ON_AVERAGE} are read with ease"] if mean > MOST_ON_AVERAGE else []),
        *([f"{relative:.1f} relative clauses in 100 words, at most {MOST_RELATIVE}"] if relative > MOST_RELATIVE else []),
    ]


def opening_of(text: str) -> str:
    """Return the title, as a sentence, and the first paragraph of a page."""
    title, _, rest = text.partition("\n")
    return f"{title.removeprefix('# ')}\n\n{rest.strip().partition(chr(10) * 2)[0]}"


@functools.cache
def texts() -> dict[str, str]:
    """Return all prose by where it stands: pages, and the docstrings and messages of each package."""
    found = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    for file in sorted((ROOT / "src").rglob("*.py")):
        folder = file.parent.relative_to(ROOT).as_posix()
        for kind, said in _said_in(ast.parse(file.read_text(encoding="utf-8"))):
            found[f"{folder}, {kind}"] = found.get(f"{folder}, {kind}", "") + f"{said}\n\n"
    return found


def _said_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
            told = re.split(r"\n\s*(Example|Raises):\n", doc)[0]
            yield "docstrings", re.sub(r"\n +[\w*]+: ", "\n\n", told)  # each argument is a sentence
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and (said := _text(node.exc.args)):
            yield "messages", said


def _text(arguments: list[ast.expr]) -> str:
    parts = [part for one in arguments for part in (one.values if isinstance(one, ast.JoinedStr) else [one])]
    return "".join(part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "Code" for part in parts)


def counts() -> dict[str, dict[str, int]]:
    """Count for each page and package how often each rule is broken."""
    return {where: dict(Counter(rule.split(": write")[0] for rule, _ in all_broken(where))) for where in texts()}


def all_broken(where: str) -> list[tuple[str, str]]:
    """Return what breaks a rule at a place; a message also breaks one if no remedy follows a colon."""
    messages = texts()[where].strip().split("\n\n") if where.endswith(", messages") else []
    return [*broken(texts()[where]), *((_NO_REMEDY, said) for said in messages if len(said) > 15 and ": " not in said)]


@pytest.mark.parametrize("page", STRICT)
def test_a_page_that_is_rewritten_keeps_every_rule(page: str) -> None:
    assert broken(texts()[page]) == []
    assert averages(texts()[page]) == []


@pytest.mark.parametrize("page", OPENINGS)
def test_a_page_of_results_opens_with_its_question_and_the_answer(page: str) -> None:
    opening = opening_of(texts()[page])
    assert opening.splitlines()[0].endswith("?"), "the title is the question"
    assert broken(opening) == []


def test_no_page_docstring_or_message_gets_worse() -> None:
    known = json.loads(RECORDED.read_text())
    worse = [
        f"{where}: {rule} {n} times, {known.get(where, {}).get(rule, 0)} recorded: {_cases(where, rule)}"
        for where, found in counts().items()
        for rule, n in found.items()
        if n > known.get(where, {}).get(rule, 0)
    ]
    assert not worse, "\n".join(worse)


def _cases(where: str, rule: str) -> str:
    return " | ".join(said for name, said in all_broken(where) if name.startswith(rule))


_NAMED_ELSEWHERE = {"distribute_tensor", "placements"}  # by torch, of which we use others


@functools.cache
def names() -> set[str]:
    """Return every name in code and configurations."""
    patterns = (
        "src/**/*.py",
        "conf/**/*.yaml",
        "tests/**/*.py",
        "benchmarks/**/*.py",
        "docs/*.py",
        "*.toml",
        ".github/**/*.yml",
    )
    files = [file for pattern in patterns for file in ROOT.glob(pattern) if file != Path(__file__)]
    return {name for file in files for name in re.findall(r"[A-Za-z_]\w*", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES)
def test_code_in_a_sentence_names_what_there_is(page: str) -> None:
    """Names with a capital or an underscore within; capitals alone are variables of the environment, ``_x`` is an ending."""
    text = texts()[page]
    own = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```", text, re.DOTALL))))
    spans = re.findall(r"(?<!`)`([A-Za-z_][\w.]*(?:\([^`\n]*\))?)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = {name for span in spans for name in re.findall(r"[A-Za-z_]\w*", span) if re.search(r"_|[a-z][A-Z]", name)}
    found = {name for name in found if not re.fullmatch(r"[A-Z_]+|_.*", name) and not [*ROOT.glob(f"*/results/{name}.md")]}
    assert sorted(found - names() - own - _NAMED_ELSEWHERE) == []


def test_the_rules_find_what_they_name() -> None:
    page = "# Whoever\n\nWhoever goes on with it, `alone`: is told; and: so on.\n\n| whoever |\n\n```bash\nwhoever\n```\n"
    rules = [rule.split(": write")[0] for rule, _ in broken(page + "word " * 26)]
    assert sorted(rules) == [r"\b(goes|go|went) on\b", r"\bis (told|said)\b", r"\bwhoever\b", "more than 25 words", _TWO_COLONS]
    assert sentences_of("It is 3.5, e.g. Four. `x` is. He said.") == ["It is 3.5, e.g. Four.", "Code is.", "He said."]


if __name__ == "__main__":
    if "--record" in sys.argv:
        RECORDED.write_text(
            json.dumps({where: found for where, found in counts().items() if found}, indent=1, sort_keys=True) + "\n"
        )
    else:
        for where in sys.argv[1:] or STRICT:
            for rule, sentence in all_broken(where):
                print(f"{where}: {rule}\n    {sentence}")
            print(*(f"{where}: {fault}" for fault in averages(texts()[where])), sep="\n")

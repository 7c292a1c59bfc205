"""One word for each idea, and the usual one: words that a stranger would need a key for stay out of code and pages.

The glossary explains the words that are ours. These are not among them: each had a meaning here that it has nowhere
else, or is a second word for something that has one already.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".pyi", ".html"))
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

INSTEAD = {
    "door": "protocol",
    "said": "what it is: request, answer, error, setting",
    "told": "reads, gets, is given, knows",
    "grave": "what it is: a deletion, a tombstone",
    "bury": "dead-letter, free",
    "inter": "dead-letter, free",
    "errand": "job, task",
    "acked": "acknowledged",
}
"""By a word that is left out, what is written instead."""
FORMS = {
    "doors": "door",
    "graves": "grave",
    "buried": "bury",
    "buries": "bury",
    "interred": "inter",
    "errands": "errand",
}
NAMES = {"looking": "a noun: browsing, surveying"}
"""The same for words that are ordinary in a sentence, but say nothing as the name of a module, class or function."""
OF_OTHERS = re.compile(r"\backed_total\b")
"""Names that another specification gives: Synap's statistics."""


def words(text: str) -> set[str]:
    """The words of `text` in lower case, also those that names are made of: `is_ready`, `SqliteLog`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def left_out(text: str) -> list[str]:
    found = words(OF_OTHERS.sub("", text))
    return sorted({FORMS.get(word, word) for word in found if FORMS.get(word, word) in INSTEAD})


def names(tree: ast.AST) -> set[str]:
    """What a module defines."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
    return found


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=where)
def test_a_stranger_needs_no_key(path: Path) -> None:
    found = {
        f"{where(path)}:{number}: {word}: say {INSTEAD[word]}"
        for number, line in enumerate([where(path), *path.read_text().splitlines()])
        for word in left_out(line)
    }
    assert sorted(found) == []


def test_names_say_what_they_name() -> None:
    found = [
        (where(path), name, NAMES[word])
        for path in SOURCES
        if path.suffix == ".py"
        for name in {path.stem, *names(ast.parse(path.read_text()))}
        for word in words(name) & NAMES.keys()
    ]
    assert found == []


def test_words_are_found_wherever_they_stand() -> None:
    assert left_out("class SqsDoor: ...") == ["door"]
    assert left_out("self._until_told(acked)  # the graves") == ["acked", "grave", "told"]
    assert left_out("indoors, international, packed, `acked_total`") == []

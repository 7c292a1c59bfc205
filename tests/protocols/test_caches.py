"""No cache that is keyed by what a client sends grows with the size of what it sends."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "smista"
FIXED = {
    ("protocols/http/app.py", "_openapi"): "has no arguments",
    ("protocols/http/rest.py", "_kinds"): "the commands that there are",
    ("client/calls.py", "decoder"): "the types of answers",
    ("cli/app.py", "built"): "has no arguments",
}


def test_lru_caches_are_for_what_clients_cannot_choose() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {ast.unparse(each).split("(")[0] for each in node.decorator_list}
                if names & {"lru_cache", "functools.lru_cache", "cache", "functools.cache"}:
                    found.add((str(path.relative_to(SOURCES)), node.name))
    assert found == set(FIXED)

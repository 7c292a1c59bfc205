"""docs/architecture.md is true: what it names is there, and every package is named.

Read from the source, so that a file or function that was renamed is found without importing anything.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/smista"
PAGE = (ROOT / "docs/architecture.md").read_text()
PLACE = re.compile(r"`([\w./-]+(?:/|\.(?:py|md|toml))(?:::[\w.]+)?)`")
NEW = re.compile(r"(?<![A-Z])NAME(?![A-Z])")
"""What stands for the name of something that is yet to be made."""
OF_THE_REPOSITORY = ("docs/", "tests/", "bench/", "pyproject.toml")


def path_of(name: str) -> Path:
    return (ROOT if name.startswith(OF_THE_REPOSITORY) else SOURCE) / name


def members(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What a module or class defines, by name; of a class, what is in it."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        match node:
            case ast.ClassDef(name=name, body=inner):
                found[name] = inner
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = []
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = []
            case ast.Assign(targets=targets):
                found |= {target.id: [] for target in targets if isinstance(target, ast.Name)}
    return found


def has(path: Path, dotted: str) -> bool:
    body = ast.parse(path.read_text()).body
    for name in dotted.split("."):
        inside = members(body)
        if name not in inside:
            return False
        body = inside[name]
    return True


def wrong(place: str) -> str | None:
    """What is wrong with a place that a page names."""
    name, _, inside = place.partition("::")
    path = path_of(name)
    if NEW.search(name):
        return None if path.parent.is_dir() else f"{place}: there is no folder {path.parent}"
    if not path.exists():
        return f"{place}: there is no such file"
    if inside and not has(path, inside):
        return f"{place}: the file has no {inside}"
    return None


def test_everything_the_page_names_is_there() -> None:
    places = PLACE.findall(PAGE)
    assert len(places) > 80
    assert [problem for place in places if (problem := wrong(place))] == []


def test_every_package_is_named() -> None:
    packages = {path.parent.relative_to(SOURCE).as_posix() + "/" for path in SOURCE.rglob("__init__.py")} - {"./"}
    rows = re.findall(r"^\| `([\w/]+/)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(packages)
    loose = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}
    assert {name for name in loose if f"`{name}`" not in PAGE} == set()


def test_a_page_that_went_stale_is_found() -> None:
    assert wrong("core/queue.py::Queue.insert") is None
    assert wrong("core/NAME.py") is None
    assert wrong("core/gone.py") == "core/gone.py: there is no such file"
    assert wrong("core/queue.py::Queue.gone") == "core/queue.py::Queue.gone: the file has no Queue.gone"
    assert wrong("gone/NAME.py") == f"gone/NAME.py: there is no folder {SOURCE / 'gone'}"

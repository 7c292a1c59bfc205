"""What the pages name is in the code: classes and their members, calls and their parameters, settings, fields, files.

Read from the source, not imported: a name that was changed there and not on the pages is found without Spark or a
broker. Only names between backticks are looked at; those of programs are found when the programs are run.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from smista.server.settings import NOT_SETTINGS, PREFIX, TEST_PREFIX, ServerSettings, variable

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# What pages name beside the package: tests, tools, the files of a deployment.
OTHERS = sorted(
    path
    for folder in ("tests", "tools", "deploy", "bench")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".toml", ".json") and path != Path(__file__)
)
EXAMPLES = {"orders_dlq"}
"""Names that the pages make up."""
OF_KUBERNETES = {"SMISTA_PORT", "SMISTA_SERVICE_HOST"}
"""What it sets where a service is named smista."""
NO_MODULES = {"smista.json", "smista.msgpack", "smista.toml", "smista.zip", "smista.body", "smista.default.svc"}
"""Subprotocols, files, an attribute, a host."""
MADE_OF_PARTS = re.compile(r"process_\w+|(wait|work)_p\d+_ms")
"""Metrics and columns whose names the code puts together; their pages have tests of their own."""


def words(paths: list[Path]) -> set[str]:
    return {word for path in paths for word in re.findall(r"\w+", path.read_text())}


KNOWN = words([*SOURCES, *OTHERS])


class Code:
    """Classes with their members and bases, functions with their parameters, by name; of two with one name, both."""

    def __init__(self) -> None:
        self.members: dict[str, set[str]] = {}
        self.bases: dict[str, set[str]] = {}
        self.parameters: dict[str, set[str]] = {}
        self.modules: dict[str, set[str]] = {}
        for path in SOURCES:
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_text())
            self.modules.setdefault(module, set()).update(defined(tree.body))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.members.setdefault(node.name, set()).update(defined(node.body), set_on_self(node))
                    self.bases.setdefault(node.name, set()).update(name_of(base) for base in node.bases)
                    self._note(node.name, taken_by(node))
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._note(node.name, parameters(node))

    def _note(self, name: str, parameters: set[str]) -> None:
        self.parameters.setdefault(name, set()).update(parameters)

    def members_of(self, kind: str) -> set[str]:
        found = set(self.members[kind])
        for base in self.bases[kind] - {kind}:
            found |= self.members_of(base) if base in self.members else set()
        return found

    def parameters_of(self, name: str) -> set[str]:
        """A structure has the fields of its bases too."""
        return set().union(
            *(self.parameters_of(base) for base in self.bases.get(name, set()) - {name}),
            self.parameters.get(name, set()),
        )

    def has(self, dotted: str) -> bool:
        """Whether `smista.a.b` is a module, or something in one."""
        module, _, name = dotted.rpartition(".")
        return dotted in self.modules or name in self.modules.get(module, set())


def name_of(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return name_of(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign():
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.ImportFrom() | ast.Import():
                yield from (each.asname or each.name for each in node.names)


def set_on_self(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def taken_by(node: ast.ClassDef) -> set[str]:
    """What it may be made with: the fields of a structure, the parameters of `__init__`."""
    taken: set[str] = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            taken.add(each.target.id)
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            taken |= parameters(each)
    return taken


CODE = Code()


def spans(path: Path) -> list[str]:
    """What stands between backticks, outside of programs."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL))


every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


@every_page
def test_every_name_is_in_the_code(path: Path) -> None:
    found = [name for span in spans(path) for name in re.findall(r"(?<![\w/.-])[A-Za-z]\w*(?![\w-])", span)]
    names = {name for name in found if "_" in name or re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", name)}
    settings = {name for name in names if name.startswith(PREFIX) and not name.startswith(TEST_PREFIX)}
    assert settings <= {PREFIX, *map(variable, ServerSettings.__struct_fields__), *NOT_SETTINGS, *OF_KUBERNETES}
    missing = names - settings - KNOWN - EXAMPLES
    assert [name for name in sorted(missing) if not MADE_OF_PARTS.fullmatch(name)] == []


@every_page
def test_every_member_of_a_class_is_one(path: Path) -> None:
    dotted = {found for span in spans(path) for found in re.findall(r"(?<![\w.])([A-Z]\w+)\.([a-z]\w*)", span)}
    wrong = [f"{kind}.{name}" for kind, name in dotted if kind in CODE.members and name not in CODE.members_of(kind)]
    assert wrong == []


@every_page
def test_every_module_is_there(path: Path) -> None:
    named = {found for span in spans(path) for found in re.findall(r"(?<![\w./-])smista(?:\.[A-Za-z_]\w*)+", span)}
    assert [name for name in sorted(named - NO_MODULES - loggers()) if not CODE.has(name)] == []


def loggers() -> set[str]:
    return {name for path in SOURCES for name in re.findall(r'getLogger\("([\w.]+)"\)', path.read_text())}


@every_page
def test_every_call_takes_the_parameters_it_is_shown_with(path: Path) -> None:
    calls = {found for span in spans(path) for found in re.findall(r"(?<![\w/-])(\w+)\(([^()]*)\)", span)}
    shown = [(name, each) for name, given in calls if name in CODE.parameters for each in re.findall(r"(\w+)=", given)]
    assert [f"{name}({each}=)" for name, each in shown if each not in CODE.parameters_of(name)] == []


def test_every_call_of_the_broker_is_shown_with_its_own_parameters() -> None:
    """`part.call(a, b=)`: the parts are attributes of the broker, and their classes have the part's name."""
    text = (ROOT / "docs/engine.md").read_text().split("## Calls")[1].split("## Long operations")[0]
    found = re.findall(r"`(\w+)\.(\w+)(?:\(([\w, =]+)\))?`", text)
    parts = {part: "".join(map(str.capitalize, part.split("_"))) for part, _, _ in found}
    kinds = {part: {"Log": "LogState", "Background": "BackgroundTasks"}.get(kind, kind) for part, kind in parts.items()}
    assert len(found) > 60
    assert {part for part in parts if part not in CODE.members_of("Broker")} == set()
    assert [f"{part}.{name}" for part, name, _ in found if name not in CODE.members_of(kinds[part])] == []
    shown = [(name, each.strip().split("=")[0]) for _, name, given in found for each in given.split(",") if given]
    assert [f"{name}({each})" for name, each in shown if each not in CODE.parameters[name]] == []


@every_page
def test_every_command_is_there(path: Path) -> None:
    about = r"(?:queue|policy|exchange|dlq|scheduled|claim|staged|broker)"
    named = {name for span in spans(path) for name in re.findall(rf"(?<![\w./-]){about}\.[a-z_]+(?![\w.(])", span)}
    known = {
        name for source in SOURCES for name in re.findall(r'^    name = "(\w+\.\w+)"', source.read_text(), re.MULTILINE)
    }
    assert sorted(named - known) == []


@every_page
def test_every_file_of_the_repository_is_there(path: Path) -> None:
    file = re.compile(r"(?:src|tests|tools|deploy|examples|smista)/[\w/.]+")
    named = {span for span in spans(path) if file.fullmatch(span) and "NAME" not in span}
    assert [name for name in sorted(named) if not (ROOT / name).exists() and not (ROOT / "src" / name).exists()] == []

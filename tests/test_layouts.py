"""What is packed into bytes has one home: nobody else knows a struct's format, an offset or how an id is laid out."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/smista"

HOMES = {
    "records/layout.py": "numbers in the log",
    "log/": "the log's own files, and those of SQLite",
    "engine/ids.py": "ids and receipts",
    "bulk/decoder.py": "rows on their way to numpy",
    "bulk/frames.py": "between the broker and the process that reads the log",
    "service/staging/": "staged rows, and how long Arrow's messages are",
    "protocols/": "what clients send and get",
    "server/http/": "WebSocket, and options of sockets",
}
PACKING = {"Struct", "calcsize", "iter_unpack", "pack", "pack_into", "unpack", "unpack_from"}


def packs(tree: ast.AST) -> list[int]:
    """The lines that know how something is packed."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            node.attr in ("from_bytes", "to_bytes")
            or (isinstance(node.value, ast.Name) and node.value.id == "struct" and node.attr in PACKING)
        )
    ] + [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "struct" and any(n.name != "error" for n in node.names)
    ]


FOUND = {
    path.relative_to(SOURCE).as_posix(): lines
    for path in sorted(SOURCE.rglob("*.py"))
    if (lines := packs(ast.parse(path.read_text())))
}


def test_only_the_homes_of_layouts_know_how_something_is_packed() -> None:
    assert {name: lines for name, lines in FOUND.items() if not name.startswith(tuple(HOMES))} == {}


def test_every_home_packs_something() -> None:
    assert [home for home in HOMES if not any(name.startswith(home) for name in FOUND)] == []


def test_packing_is_found_however_it_is_written() -> None:
    assert packs(ast.parse("import struct\nA = struct.Struct('<I')\nstruct.error")) == [2]
    assert packs(ast.parse("from struct import pack")) == [1]
    assert packs(ast.parse("int.from_bytes(head[2:4], 'big')")) == [1]

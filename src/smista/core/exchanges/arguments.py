"""Arguments of a binding, and header values, as something that can be compared, hashed and kept.

A binding is known by its arguments too, and a headers exchange compares them with a message's headers. Both
need a form in which equal values are equal and different ones differ. Python's own equality will not do:
`True == 1`, lists have no hash, `nan != nan`. So a value is *frozen*:

    str, int, float     itself, so that 1 and 1.0 are equal, as in RabbitMQ
    None                itself
    bool, bytes         ("bool", True), ("bytes", b"..."): never equal to an int or a str
    nan                 ("nan", None)
    list, tuple         ("list", (frozen, ...))
    dict                ("table", ((name, frozen), ...)), by name: the order in a table says nothing
    any other           (name of its type, value): a Decimal is never equal to an int

Every tuple among frozen values is such a pair, so `thaw` gives back what was frozen.
"""

from collections.abc import Hashable, Mapping
from typing import TypeAlias

Frozen: TypeAlias = Hashable
Arguments: TypeAlias = tuple[tuple[str, Frozen], ...]

# Deeper nesting than this is no routing rule; the bound keeps the recursion below from ending the process.
DEPTH_MAX = 32


class Unfreezable(Exception):
    """The value is nested too deeply, or is of a type that cannot be compared."""


def freeze(arguments: Mapping[str, object] | None) -> Arguments:
    """The arguments of a binding in their one canonical form. Raises `Unfreezable`."""
    if not arguments:
        return ()
    return tuple((name, freeze_value(arguments[name])) for name in _names(arguments))


def thaw(arguments: Arguments) -> dict[str, object]:
    """The arguments as they were given, for listings and records."""
    return {name: _thaw_value(value) for name, value in arguments}


def freeze_value(value: object, depth: int = 0) -> Frozen:
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value
    if depth > DEPTH_MAX:
        raise Unfreezable(f"nested more than {DEPTH_MAX} deep")
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float) and value != value:
        return ("nan", None)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return ("bytes", bytes(value))
    if isinstance(value, list | tuple):
        return ("list", tuple(freeze_value(item, depth + 1) for item in value))
    if isinstance(value, Mapping):
        return ("table", tuple((name, freeze_value(value[name], depth + 1)) for name in _names(value)))
    if not isinstance(value, Hashable):
        raise Unfreezable(f"of type {kind.__name__}, which cannot be compared")
    return (kind.__name__, value)


def _names(table: Mapping[str, object]) -> list[str]:
    # A table that came as MessagePack may have names that are no strings, whatever the annotation says.
    if not all(isinstance(name, str) for name in table):
        raise Unfreezable("a table with a name that is not a string")
    return sorted(table)


def _thaw_value(value: Frozen) -> object:
    if not isinstance(value, tuple):
        return value
    kind, content = value
    if kind == "list":
        return [_thaw_value(item) for item in content]
    if kind == "table":
        return {name: _thaw_value(item) for name, item in content}
    if kind == "nan":
        return float("nan")
    return content

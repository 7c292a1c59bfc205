"""What is wrong with a value that does not fit its type, in ordinary words. The one place that reads msgspec's errors.

    Expected `int | null`, got `str` - at `$.settings.max_depth`
    `settings.max_depth` is text; give a whole number, or null.

A sentence names the field by a path that people know, and ends with what to give. Where the type is at hand, the values
that a field may have are named too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "bytes": "bytes (in JSON as base64 text)",
}
_GOT = _WANTED | {"float": "a number with a fraction", "bytes": "bytes", "null": "null", "None": "null"}
_OTHERS = {
    "Invalid base64 encoded string": "is not base64; encode its bytes so",
    "Integer value out of range": "is too large; give a number of at most 64 bits",
    "Number out of range": "is too large; give a smaller number",
}
_UNITS = {"str": ("character", "characters"), "bytes": ("byte", "bytes")}
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def explained(error: Exception, kind: Any = None, *, place: str = "the request", where: str = "") -> str:
    """A sentence, or several, on an error of msgspec that a value of type `kind` cannot be made. `place` is the whole
    thing, `where` stands behind the name of a field: " in the query"."""
    if not isinstance(error, msgspec.ValidationError):
        return (
            f"{_subject('', place, where)} holds a value of a type that has no place there; give each field its type."
        )
    what, separator, path = str(error).rpartition(" - at `")
    if not separator:
        what, path = path, ""
    path = path.rstrip("`")
    is_name = path.startswith("key` in `")
    path = path.removeprefix("key` in `").removeprefix("$")
    shown = path.removeprefix(".")
    if field := re.fullmatch(r"Object missing required field `(.*)`", what, re.DOTALL):
        return missing_field(_joined(shown, field[1]), where)
    if field := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        return unknown_field(_joined(shown, field[1]), where)
    subject = _subject(shown, place, where)
    if is_name:
        subject = f"A name in {subject[0].lower()}{subject[1:]}"
    return f"{subject} {_fault(what, kind, path)}."


def missing_field(path: str, where: str = "") -> str:
    return f"The required field `{path}`{where} is missing; give it."


def unknown_field(path: str, where: str = "") -> str:
    return f"The unknown field `{path}`{where} is given; leave it out, or check its spelling."


def too_many(field: str, most: int) -> str:
    """A list with more members than it may have."""
    return f"`{field}` has too many members; give a list of at most {most:,}."


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _subject(path: str, place: str, where: str) -> str:
    if path or " " not in place:
        return f"`{path or place}`{where}"
    return place[0].upper() + place[1:] + where


def _fault(what: str, kind: Any, path: str) -> str:
    if expected := re.fullmatch(r"Expected `(.*?)`(.*)", what, re.DOTALL):
        return _unexpected(expected[1].split(" | "), expected[2])
    if value := re.fullmatch(r"Invalid enum value (.*)", what, re.DOTALL):
        values = [] if kind is None else list(_values_at(kind, path))
        cure = f"give one of {', '.join(values)}" if values else "give one that it can have"
        return f"is {value[1]:.80}; {cure}"
    return _OTHERS.get(what, f"cannot be read: {what[:1].lower()}{what[1:]}")


def _unexpected(names: list[str], rest: str) -> str:
    wanted = _wanted(names)
    if got := re.fullmatch(r", got `(.*)`", rest):
        return f"is {_GOT.get(got[1], got[1])}; give {wanted}"
    one, many = _UNITS.get(names[0], ("member", "members"))
    if length := re.match(r" of (?:length (>=|<=|)|at (least|most) length) ?(\d+)", rest):
        sign = {"least": ">=", "most": "<="}.get(length[2], length[1])
        number = f"{int(length[3]):,} {one if length[3] == '1' else many}"
        if not sign:
            return f"has another length; give {wanted} of {number}"
        length_is, bound = ("short", "least") if sign == ">=" else ("long", "most")
        return f"is too {length_is}; give {wanted} of at {bound} {number}"
    if edge := re.fullmatch(r" (>=|<=|>|<) (.*)", rest):
        words = {">=": ", {} or more", "<=": ", {} or less", ">": " above {}", "<": " below {}"}
        return f"is out of range; give {wanted}{words[edge[1]].format(edge[2])}"
    return f"does not fit; give {wanted}{rest}"


def _wanted(names: list[str]) -> str:
    """What may be given: "a whole number, text, or null"."""
    if "float" in names:
        names = [name for name in names if name != "int"]
    words = [_WANTED.get(name, name) for name in names if name != "null"]
    if "null" in names:
        words.append("null")
    return " or ".join(words) if len(words) < 2 else f"{', '.join(words[:-1])}, or {words[-1]}"


# -- the values that a field may have ---------------------------------------------------------------------------------


def _values_at(kind: Any, path: str) -> Iterator[str]:
    found = list(_choices(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        found = [choice for one in found for inner in _inner(one, step[1]) for choice in _choices(inner)]
    for one in found:
        if isinstance(one, inspect.EnumType):
            yield from (str(member.value) for member in one.cls)
        elif isinstance(one, inspect.LiteralType):
            yield from map(str, one.values)


def _choices(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _choices(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _choices(one)
    else:
        yield kind


def _inner(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    if field is not None and isinstance(kind, inspect.StructType):
        yield from (one.type for one in kind.fields if one.encode_name == field)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield kind.item_type
    elif isinstance(kind, inspect.TupleType):
        yield from kind.item_types
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type

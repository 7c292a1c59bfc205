"""Values that every protocol can give and that a record of the log can hold: what headers and arguments are made of."""

from __future__ import annotations

import math
from typing import Any

from smista.errors import InvalidRequest

NESTING_MAX = 32
"""Of headers and arguments."""


class Untranslatable(Exception):
    """A value that one of the formats cannot express; says why."""


def check_plain(value: object, *, nesting_max: int) -> None:
    """Raise `Untranslatable` unless `value` is null, true, false, text, a number of 64 bits, or lists and objects of
    those."""
    match value:
        case None | bool() | str():
            return
        case int():
            if not -(1 << 63) <= value < 1 << 64:
                raise Untranslatable("a whole number of more than 64 bits")
        case float():
            if not math.isfinite(value):
                raise Untranslatable(f"the number {value}")
        case list() | dict() if not nesting_max:
            raise Untranslatable("nested too deeply")
        case list():
            for item in value:
                check_plain(item, nesting_max=nesting_max - 1)
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise Untranslatable(f"a name that is not text but {_kind(name)}")
                check_plain(item, nesting_max=nesting_max - 1)
        case _:
            raise Untranslatable(_kind(value))


def _kind(value: object) -> str:
    return {"bytes": "bytes", "datetime": "a timestamp", "Ext": "an extension"}.get(
        type(value).__name__, f"of type {type(value).__name__}"
    )


def check_named(field: str, values: dict[str, Any]) -> None:
    """Refuse names and values that are not plain."""
    for name, value in values.items():
        try:
            check_plain(value, nesting_max=NESTING_MAX)
        except Untranslatable as problem:
            raise InvalidRequest(
                f"`{field}.{name[:100]}` is {problem}; give text, numbers, true, false, null, lists and objects."
            ) from None

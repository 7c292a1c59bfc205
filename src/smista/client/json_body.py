"""A value as the JSON that is stored.

What JSON has no words for is refused rather than stored as something else: NaN and infinity, which msgspec writes as
`null`, and bytes inside a value, which it writes as base64 text. Whoever reads the message could not tell them apart
from what they became. What has a usual form in JSON is written in that form: a `Decimal`, a `UUID`, dates and times as
text, tuples and sets as arrays, dataclasses and `msgspec.Struct`s as objects, an enum's member as its value, numbers as
names in an object as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_PLAIN = frozenset({str, int, bool, type(None), msgspec.Raw})
_BYTES = (bytes, bytearray, memoryview)


def encode_json(value: object) -> bytes:
    """Raises `ValueError` with what is wrong, and where."""
    try:
        text = _encode(value)
        if not _is_plain(value):
            for place, problem in _problems(value, ""):
                raise ValueError(f"{place or 'it'} is {problem}, for which JSON has no words")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
    return text


def _is_plain(value: Any) -> bool:
    """Whether there is surely nothing wrong. Every message that is a value passes here, so nothing is built."""
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or not (type(item) in _PLAIN or _is_plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) in _PLAIN or _is_plain(item) for item in value)
    return kind in _PLAIN or (kind is float and math.isfinite(value))


def _problems(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """What is wrong, and where."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place, f"the number {value}"
    elif isinstance(value, _BYTES):
        yield place, "bytes"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _problems(name, f"a name in {place or 'it'}")
            yield from _problems(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _problems(item, f"{place}[{index}]")
    else:
        plain = msgspec.to_builtins(value, builtin_types=_BYTES)
        if type(plain) is not type(value):
            yield from _problems(plain, place)

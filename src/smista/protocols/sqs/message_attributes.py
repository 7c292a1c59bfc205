"""Message attributes: what a sender gives beside the body, their digests, and how the log stores them.

They are stored in the envelope's properties after a 0x03 (see `service.properties`), with the trace header, so that
what comes out is to the letter what went in. Other protocols show them as headers. Headers of messages of other
protocols are attributes here: of type String where they are text, Number where they are numbers, Binary where bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from smista.caches import cached_if_small
from smista.protocols.sqs.errors import UNSUPPORTED_OPERATION, SqsError, invalid
from smista.protocols.sqs.limits import Limits
from smista.service import properties
from smista.service.properties import Properties

SQS = 3
"""The first byte of properties stored in this form."""
TRACE_BYTES_MAX = 512
TRACE_HEADER = "AWSTraceHeader"
EVERY_NAME = frozenset(("All", ".*", "*"))
ENCODING_HEADER = "smista.body-encoding"

_NAME = re.compile(r"[\w.-]{1,256}")
"""Letters and digits of any script."""
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\s].*)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

# What XML 1.0 cannot hold: these bytes, and U+FFFE and U+FFFF.
NOT_XML = bytes(set(range(32)) - {9, 10, 13})
NOT_XML_BEYOND = ("\ufffe".encode(), "\uffff".encode())


Attributes = dict[str, tuple[str, Any]]
"""By name the type and the value, which is str or bytes; msgspec has no union of these."""


class AttributeValue(msgspec.Struct, rename="pascal", omit_defaults=True, gc=False):
    """As on the wire, in requests and answers."""

    string_value: str | None = None
    binary_value: bytes | None = None
    data_type: str | None = None


class GivenAttribute(AttributeValue, rename="pascal", omit_defaults=True):
    """With values that the API defines and SQS does not accept."""

    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class StoredAttributes(msgspec.Struct, frozen=True, array_like=True):
    """As in the log: per attribute its type and its value."""

    attributes: Attributes = msgspec.field(default_factory=dict)
    trace_header: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredAttributes).decode
NOTHING = StoredAttributes()


def write(stored: StoredAttributes) -> bytes:
    return b"" if stored == NOTHING else b"\x03" + _encode(stored)


@cached_if_small(len)
def read(data: bytes) -> StoredAttributes:
    """The attributes in the properties of a message, whichever protocol wrote them. Do not change them."""
    if not data:
        return NOTHING
    if data[0] == SQS:
        return _decode(memoryview(data)[1:])
    shown = {}
    for name, value in properties.read(data).headers.items():
        if _NAME.fullmatch(name):
            shown_value = _shown(value)
            if shown_value is not None:
                shown[name] = shown_value
    return StoredAttributes(shown)


def _shown(value: object) -> tuple[str, Any] | None:
    match value:
        case bool():
            return "String", str(value).lower()
        case int() | float():
            return "Number", str(value)
        case str() if value and is_xml_text(value.encode("utf-8", "replace")):
            return "String", value
        case bytes() if value:
            return "Binary", value
    return None


def as_properties(data: bytes) -> Properties:
    """For other protocols."""
    stored = _decode(memoryview(data)[1:])
    headers: dict[str, str | bytes] = {name: value for name, (_, value) in stored.attributes.items()}
    if not all(isinstance(value, str | bytes) for value in headers.values()):
        raise ValueError("an attribute is neither text nor bytes")
    if stored.trace_header is not None:
        headers[TRACE_HEADER] = stored.trace_header
    return Properties(headers=headers)


properties.READERS[SQS] = as_properties


# -- checking ---------------------------------------------------------------------------------------------------------


def is_xml_text(data: bytes) -> bool:
    """Whether UTF-8 holds only characters that XML can."""
    # By bytes, which is many times faster for a long body than a search by character.
    if len(data.translate(None, NOT_XML)) != len(data):
        return False
    return not any(beyond in data for beyond in NOT_XML_BEYOND)


def check(given: dict[str, GivenAttribute], limits: Limits) -> tuple[Attributes, int]:
    """The attributes as they are stored, and their size in bytes: names, types and values."""
    if len(given) > limits.message_attributes:
        raise invalid(f"Number of message attributes [{len(given)}] exceeds the allowed maximum [10].")
    stored = {}
    size = 0
    for name, value in given.items():
        _check_name(name)
        kind, content = _checked(name, value, limits)
        size += len(name.encode()) + len(kind.encode()) + len(content.encode() if isinstance(content, str) else content)
        stored[name] = (kind, content)
    return stored, size


def check_stored(data: bytes) -> None:
    """Refuse what no sender could have had stored."""
    stored = _decode(memoryview(data)[1:])
    given = {
        name: GivenAttribute(data_type=kind, string_value=value)
        if isinstance(value, str)
        else GivenAttribute(data_type=kind, binary_value=value)
        for name, (kind, value) in stored.attributes.items()
    }
    try:
        check(given, Limits(any_character=True))
    except SqsError as error:
        raise ValueError(str(error)) from None


properties.CHECKS[SQS] = check_stored


def _check_name(name: str) -> None:
    lower = name.lower()
    if not name or len(name) > 256:
        raise invalid("Message (user) attribute names must be between 1 and 256 characters long.")
    if lower.startswith(("aws.", "amazon.")):
        raise invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
            "internal use."
        )
    if not _NAME.fullmatch(name):
        raise invalid(f"Invalid non-alphanumeric character was found in the message attribute name '{name[:256]}'.")
    if name[0] == "." or name[-1] == "." or ".." in name:
        raise invalid(
            "You can't use message attribute names beginning or ending with a period, nor two periods in succession."
        )


def _checked(name: str, value: GivenAttribute, limits: Limits) -> tuple[str, Any]:
    if value.string_list_values or value.binary_list_values:
        raise SqsError(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    kind = value.data_type
    if not kind:
        raise invalid(f"The message attribute '{name}' must contain non-empty message attribute type.")
    found = _TYPE.fullmatch(kind)
    if found is None or len(kind) > 256:
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes "
            "is Binary, Number, and String."
        )
    base = found[1]
    if base == "Binary":
        if not value.binary_value:
            raise _empty(name, base)
        return kind, value.binary_value
    text = value.string_value
    if not text:
        raise _empty(name, "String" if base == "String" else base)
    if base == "Number":
        if not _NUMBER.fullmatch(text.strip()):
            raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    elif not limits.any_character and not is_xml_text(text.encode()):
        raise invalid(f"Message (user) attribute '{name}' contains characters outside the allowed set.")
    return kind, text


def _empty(name: str, base: str) -> SqsError:
    return invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'.")


def check_trace_header(given: dict[str, GivenAttribute]) -> str | None:
    """The only system attribute a sender may set."""
    for name in given:
        if name != TRACE_HEADER:
            raise invalid(
                f"Message system attribute name '{name[:256]}' is invalid. Valid system attribute names are: "
                f"{TRACE_HEADER}."
            )
    value = given.get(TRACE_HEADER)
    if value is None:
        return None
    if value.data_type != "String" or not value.string_value:
        raise invalid(f"Message system attribute '{TRACE_HEADER}' must contain a non-empty value of type 'String'.")
    return value.string_value


def trace_header_of(header: bytes) -> str | None:
    """The X-Amzn-Trace-Id of a request, where it is one that X-Ray would accept."""
    if b"Root=" not in header or len(header) > TRACE_BYTES_MAX or not header.isascii():
        return None
    text = header.decode()
    return text if text.isprintable() else None


# -- digests ----------------------------------------------------------------------------------------------------------


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def digest(attributes: Attributes) -> str:
    """MD5 over the attributes by name: length and name, length and type, 1 or 2, length and value."""
    parts = []
    for name in sorted(attributes):
        kind, value = attributes[name]
        for text in (name, kind):
            data = text.encode()
            parts.append(len(data).to_bytes(4, "big") + data)
        data = value if isinstance(value, bytes) else value.encode()
        parts.append((b"\2" if isinstance(value, bytes) else b"\1") + len(data).to_bytes(4, "big") + data)
    return md5(b"".join(parts))


def trace_digest(trace_header: str) -> str:
    return digest({TRACE_HEADER: ("String", trace_header)})


# -- showing ----------------------------------------------------------------------------------------------------------


def chosen(attributes: Attributes, names: list[str]) -> Attributes:
    """Those that a receiver asked for: by name, by `prefix.*`, or all of them."""
    if not attributes or not names:
        return {}
    if not EVERY_NAME.isdisjoint(names):
        return attributes
    exact = set(names)
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: value for name, value in attributes.items() if name in exact or (prefixes and name.startswith(prefixes))
    }


def on_the_wire(attributes: Attributes) -> dict[str, AttributeValue]:
    return {
        name: AttributeValue(None, value, kind) if isinstance(value, bytes) else AttributeValue(value, None, kind)
        for name, (kind, value) in attributes.items()
    }

"""From a REST request to the command it stands for."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from smista.errors import InvalidRequest
from smista.protocols.http.bounded import AT_ONCE_BYTES, in_steps
from smista.protocols.http.commands import COMMANDS, DECODERS
from smista.protocols.http.commands.base import HttpCommand
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.negotiation import format_of
from smista.protocols.http.routes import Route
from smista.protocols.web.asgi import Scope, header, kind_of, text_of, unsupported
from smista.service.values import FairTurns
from smista.wording import explained, unknown_field

T = TypeVar("T", bound=msgspec.Struct)

HEADER_PREFIX = b"smista-header-"
TAKES_OCTETS = ("queue.publish", "exchange.publish")
FORMS = frozenset((b"application/x-www-form-urlencoded", b"multipart/form-data"))
AS_MESSAGE = (
    "application/json for the fields of a publish, or the message's own type, such as application/octet-stream, where "
    "the body is the message"
)
QUERY_FIELDS_MAX = 1_000

_FIELDS: dict[Format, Decoder[dict[str, msgspec.Raw]]] = {
    each: each.decoder(dict[str, msgspec.Raw], place="the body") for each in (JSON, MESSAGE_PACK)
}


async def read(
    route: Route, path_fields: dict[str, str], scope: Scope, body: bytes, fair_turns: FairTurns
) -> tuple[HttpCommand, Format]:
    """The command that path, query and body give together, and the format in which its fields were written."""
    came_in, given = _body_fields(route, scope, body)
    sources = {"body": given}
    for place, fields in (("query", query_fields(_kinds(route.command), scope)), ("path", path_fields)):
        for name, value in fields.items():
            for other, earlier in sources.items():
                if name in earlier:
                    raise InvalidRequest(f"`{name}` is given twice, in the {other} and in the {place}.")
            sources.setdefault(place, {})[name] = _written(came_in, name, value)
    together = {name: value for fields in sources.values() for name, value in fields.items()}
    return await in_steps(DECODERS[came_in][route.command], came_in.encode(together), fair_turns), came_in


def _written(came_in: Format, name: str, value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(came_in.encode(value))
    except (OverflowError, RecursionError):
        # Only JSON in the query can be such.
        raise InvalidRequest(f"`{name}` in the query has too large a number, or is nested too deeply.") from None


# -- the body ---------------------------------------------------------------------------------------------------------


def _body_fields(route: Route, scope: Scope, body: bytes) -> tuple[Format, dict[str, msgspec.Raw]]:
    if route.body == "none":
        if body:
            raise InvalidRequest(f"{route.method} {route.path} takes no body; use the query.")
        return JSON, {}
    content_type = header(scope, b"content-type")
    came_in = None if content_type is None else format_of(content_type)
    if came_in is None and route.command in TAKES_OCTETS:
        # A form is what curl -d and browsers call whatever they send, so it means nothing for a message.
        if content_type is None or kind_of(content_type) in FORMS:
            raise unsupported(content_type, AS_MESSAGE)
        return MESSAGE_PACK, _octets(scope, content_type, body)
    if came_in is None and (content_type is not None or body):
        raise unsupported(content_type)
    came_in = came_in or JSON
    fields = _given(route, came_in, body)
    if came_in is JSON:
        _check_utf8(body)
    if route.body == "settings":
        return came_in, {"settings": msgspec.Raw(came_in.encode(fields))}
    return came_in, fields


def _given(route: Route, came_in: Format, body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a body, unread. A long one may have a million: there only those are read that the command has."""
    if len(body) <= AT_ONCE_BYTES:
        return _FIELDS[came_in](body) if body else {}
    found = _outline(came_in, route.command, is_settings=route.body == "settings")(body)
    given = {name: getattr(found, name) for name in found.__struct_fields__}
    return {name: value for name, value in given.items() if value is not msgspec.UNSET}


@cache
def _outline(came_in: Format, command: str, *, is_settings: bool) -> Decoder[Any]:
    names = list(_kinds(command))
    if is_settings:
        [structure] = [one for one in _choices(_kinds(command)["settings"]) if issubclass(one, msgspec.Struct)]
        names = list(kinds_of(structure))
    fields = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names]
    return came_in.decoder(msgspec.defstruct("Given", fields, forbid_unknown_fields=True), place="the body")


def _check_utf8(body: bytes) -> None:
    """Values that are not decoded yet would be embedded in what is decoded next."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"This is not JSON: {error}.") from None


def _octets(scope: Scope, content_type: bytes | None, body: bytes) -> dict[str, msgspec.Raw]:
    """A message given as it is: its bytes are the body, its headers are ours with a prefix."""
    fields: dict[str, object] = {"body": body}
    if content_type is not None:
        fields["content_type"] = text_of(content_type)
    headers = {
        text_of(name[len(HEADER_PREFIX) :]): text_of(value)
        for name, value in scope["headers"]
        if name.startswith(HEADER_PREFIX)
    }
    if headers:
        fields["headers"] = headers
    return {name: msgspec.Raw(MESSAGE_PACK.encode(value)) for name, value in fields.items()}


# -- the query --------------------------------------------------------------------------------------------------------


@cache
def _kinds(command: str) -> dict[str, Any]:
    return kinds_of(typing.cast(Any, COMMANDS[command]))


def kinds_of(structure: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a structure's fields by name."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(structure)}


def named(structure: type[T], path_fields: dict[str, str], scope: Scope) -> T:
    """What path and query give together, where a request is not for a command."""
    found = query_fields(kinds_of(structure), scope)
    for name in path_fields.keys() & found.keys():
        raise InvalidRequest(f"`{name}` is given twice, in the query and in the path.")
    try:
        return msgspec.convert({**found, **path_fields}, structure, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(explained(error, structure, where="" if path_fields else " in the query")) from None


def query_fields(kinds: dict[str, Any], scope: Scope) -> dict[str, object]:
    """What the query gives for fields of these types."""
    found: dict[str, object] = {}
    pieces = [piece for piece in scope["query_string"].split(b"&") if piece]
    if len(pieces) > QUERY_FIELDS_MAX:
        raise InvalidRequest(f"The query has {len(pieces)} fields; it may have {QUERY_FIELDS_MAX}.")
    for piece in pieces:
        name, text = map(_unescaped, piece.partition(b"=")[::2])
        if name not in kinds:
            raise InvalidRequest(unknown_field(name[:100], " in the query"))
        value = _value(name, text, kinds[name])
        if name not in found:
            found[name] = value
        elif isinstance(value, list):
            found[name] = [*typing.cast(list[object], found[name]), *value]
        else:
            raise InvalidRequest(f"`{name}` is given twice in the query.")
    return found


def _unescaped(text: bytes) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{text.decode('latin-1')!r:.100} in the query is not UTF-8, percent-encoded.") from None


def _value(name: str, text: str, kind: Any) -> object:
    """What a text in the query means where a field of this type is wanted."""
    origins = {typing.get_origin(choice) or choice for choice in _choices(kind)}
    if list in origins:
        return [text]
    if origins & {dict, msgspec.Raw} or any(
        isinstance(one, type) and issubclass(one, msgspec.Struct) for one in origins
    ):
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"`{name}` in the query is not JSON: {error}.") from None
    try:
        return msgspec.to_builtins(msgspec.convert(text, kind, strict=False), builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidRequest(explained(error, kind, place=name, where=" in the query")) from None


def _choices(kind: Any) -> list[Any]:
    """The types a union offers, without their annotations; a type that is none offers itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [choice for one in typing.get_args(kind) for choice in _choices(one)]
    return [typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind]

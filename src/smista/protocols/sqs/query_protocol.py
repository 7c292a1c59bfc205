"""The Query protocol: parameters as a form or in the URL, lists and maps flattened into numbered names; XML out, or
where the request's Accept says so the same in JSON.

    Attribute.1.Name=DelaySeconds&Attribute.1.Value=5     Attributes={"DelaySeconds": "5"}
    SendMessageBatchRequestEntry.1.Id=a                   Entries=[{"Id": "a"}]

So a request becomes what it would be in JSON and is read by the same structures; an answer goes the other way.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from smista.protocols.sqs import json_protocol
from smista.protocols.sqs.actions import ACTIONS
from smista.protocols.sqs.actions.base import Action, Answer
from smista.protocols.sqs.errors import (
    INVALID_ACTION,
    MALFORMED_INPUT,
    QUEUE_DOES_NOT_EXIST,
    SqsError,
    invalid,
)
from smista.protocols.sqs.message_attributes import NOT_XML, NOT_XML_BEYOND, is_xml_text
from smista.wording import explained

CONTENT_TYPE = b"text/xml"
JSON = b"application/json"
XMLNS = "http://queue.amazonaws.com/doc/2012-11-05/"
PARAMETERS_MAX = 10_000
AT_ONCE_BYTES = 8 << 10
"""Of a form that are read in one turn of the loop: some 1 ms where every letter is escaped."""
NODES_MAX = 20_000
"""Lists, maps and members that the names of parameters may stand for together: they are made in one step."""
WRITTEN_AT_ONCE = 64 << 10
"""Of an answer, in characters or bytes: some 3 ms where each is escaped."""
AT_ROOT_ONLY = frozenset(("CreateQueue", "ListQueues"))


class _Flat(NamedTuple):
    """How a list or map is written: under which parameter in JSON, and for a map by which two names."""

    parameter: str
    key: str = ""
    value: str = ""


_MEMBERS: dict[str, _Flat] = {
    "Attribute": _Flat("Attributes", "Name", "Value"),
    "AttributeName": _Flat("AttributeNames"),
    "Tag": _Flat("Tags", "Key", "Value"),
    "TagKey": _Flat("TagKeys"),
    "MessageAttribute": _Flat("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": _Flat("MessageSystemAttributes", "Name", "Value"),
    "MessageAttributeName": _Flat("MessageAttributeNames"),
    "MessageSystemAttributeName": _Flat("MessageSystemAttributeNames"),
    "AWSAccountId": _Flat("AWSAccountIds"),
    "ActionName": _Flat("Actions"),
    "SendMessageBatchRequestEntry": _Flat("Entries"),
    "DeleteMessageBatchRequestEntry": _Flat("Entries"),
    "ChangeMessageVisibilityBatchRequestEntry": _Flat("Entries"),
    "StringListValue": _Flat("StringListValues"),
    "BinaryListValue": _Flat("BinaryListValues"),
}
_LISTED = frozenset(flat.parameter for flat in _MEMBERS.values())
_IS_NUMBER = re.compile(r"[0-9]{1,9}")


# -- reading ----------------------------------------------------------------------------------------------------------


def parameters(query: bytes, form: bytes) -> dict[str, str]:
    """The parameters of the URL and of the form; the form wins."""
    found: dict[str, str] = {}
    for part in (query, form):
        if part:
            try:
                pairs = parse_qsl(
                    part.decode("ascii"),
                    keep_blank_values=True,
                    errors="strict",
                    max_num_fields=PARAMETERS_MAX,
                )
            except (UnicodeDecodeError, ValueError):
                raise _no_form() from None
            found.update(pairs)
    return found


async def parameters_in_steps(query: bytes, form: bytes, turn: Callable[[], Awaitable[None]]) -> dict[str, str]:
    """The same, with a turn for others after each `AT_ONCE_BYTES`."""
    found = parameters(query, b"")
    if len(form) <= AT_ONCE_BYTES:
        return found | parameters(b"", form)
    if not form.isascii() or form.count(b"&") >= PARAMETERS_MAX:
        raise _no_form()
    bytes_read = 0
    for pair in form.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        texts = []
        for escaped in (name, value):
            unescaped = bytearray()
            start = 0
            while start < len(escaped):
                end = _end_of_step(escaped, start)
                unescaped += unquote_to_bytes(escaped[start:end].replace(b"+", b" "))
                bytes_read += end - start
                start = end
                if bytes_read >= AT_ONCE_BYTES - 2:
                    bytes_read = 0
                    await turn()
            texts.append(unescaped)
        try:
            found[texts[0].decode()] = texts[1].decode()
        except UnicodeDecodeError:
            raise _no_form() from None
    return found


def _end_of_step(escaped: bytes, start: int) -> int:
    """Where to cut, which is not within an escape."""
    end = start + AT_ONCE_BYTES
    if end >= len(escaped):
        return len(escaped)
    escape = escaped.rfind(b"%", end - 2, end)
    return end if escape < 0 else escape


def _no_form() -> SqsError:
    return SqsError(MALFORMED_INPUT, "The parameters are not a form in UTF-8.")


def read(given: dict[str, str], *, is_at_queue: bool) -> Action:
    name = given.get("Action", "")
    action = ACTIONS.get(name)
    if action is None or (is_at_queue and name in AT_ROOT_ONLY):
        raise SqsError(INVALID_ACTION, f"The action {name[:100]} is not valid for this endpoint.")
    try:
        return msgspec.convert(_unflatten(given), action, strict=False)
    except msgspec.ValidationError as error:
        raise SqsError(MALFORMED_INPUT, f"The parameters cannot be read: {explained(error, action)}") from None
    except (RecursionError, binascii.Error):
        raise SqsError(MALFORMED_INPUT, "The parameters cannot be read.") from None


def _unflatten(given: dict[str, str]) -> dict[str, object]:
    """The lists and maps that numbered names stand for."""
    tree: dict[str, object] = {}
    node_count = 0
    for path, value in given.items():
        if node_count > NODES_MAX:
            raise SqsError(MALFORMED_INPUT, f"The parameters name more than {NODES_MAX} lists, maps and members.")
        node = tree
        *outer, last = path.split(".", 8)
        for part in outer:
            inner = node.get(part)
            if inner is None:
                inner = node[part] = {}
                node_count += 1
            if not isinstance(inner, dict):
                raise SqsError(
                    MALFORMED_INPUT, f"The parameter {path[:200]} is given both as one value and as several."
                )
            node = inner
        if isinstance(node.get(last), dict):
            raise SqsError(MALFORMED_INPUT, f"The parameter {path[:200]} is given both as one value and as several.")
        node[last] = value
    return _as_json(tree)


def _as_json(tree: dict[str, object]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, node in tree.items():
        flat = _MEMBERS.get(name)
        if not node and (flat is not None or name in _LISTED):
            # `Entries=` is how some clients write a list without members.
            continue
        if flat is None or (isinstance(node, str) and not _is_list_alone(name, node)):
            made[name] = _as_json(node) if isinstance(node, dict) else node
        elif flat.key:
            made[flat.parameter] = _map(name, node, flat)
        else:
            made[flat.parameter] = [
                _as_json(member) if isinstance(member, dict) else member for member in _members(name, node)
            ]
    return made


def _is_list_alone(name: str, node: str) -> bool:
    """`AttributeName=All` stands for a list of one, as with old clients."""
    return name.endswith(("Name", "Key", "Id")) and bool(node)


def _members(name: str, node: object) -> list[object]:
    """The members of a list in the order of their numbers."""
    if isinstance(node, str):
        return [node]
    assert isinstance(node, dict)
    members = node.get("member", node) if len(node) == 1 else node
    if not isinstance(members, dict) or not all(_IS_NUMBER.fullmatch(number) for number in members):
        raise SqsError(MALFORMED_INPUT, f"The members of {name} are not numbered.")
    return [members[number] for number in sorted(members, key=int)]


def _map(name: str, node: object, flat: _Flat) -> dict[str, object]:
    made: dict[str, object] = {}
    # `Attribute.Name=x&Attribute.Value=y` stands for a map of one, as with old clients.
    members = [node] if isinstance(node, dict) and flat.key in node else _members(name, node)
    for member in members:
        if not isinstance(member, dict) or not isinstance(member.get(flat.key), str):
            raise invalid(f"The parameter {name} needs a {flat.key} for each of its members.")
        value = member.get(flat.value)
        made[member[flat.key]] = _as_json(value) if isinstance(value, dict) else "" if value is None else value
    return made


# -- writing ----------------------------------------------------------------------------------------------------------

_ELEMENTS: dict[str, _Flat] = {
    "QueueUrls": _Flat("QueueUrl"),
    "queueUrls": _Flat("QueueUrl"),
    "Attributes": _Flat("Attribute", "Name", "Value"),
    "Tags": _Flat("Tag", "Key", "Value"),
    "Messages": _Flat("Message"),
    "MessageAttributes": _Flat("MessageAttribute", "Name", "Value"),
    "Failed": _Flat("BatchResultErrorEntry"),
    "Results": _Flat("ListMessageMoveTasksResultEntry"),
}
_NAMES_IN_JSON = {"QueueUrls": "queueUrls", "Messages": "messages"}
_ESCAPES = ((b"&", b"&amp;"), (b"<", b"&lt;"), (b">", b"&gt;"), (b'"', b"&quot;"), (b"\r", b"&#xD;"))
_UNKNOWN = "\ufffd".encode()
_TO_ZERO = bytes.maketrans(NOT_XML, bytes(len(NOT_XML)))


Written = tuple[bytes, list[bytes]]
"""The content type, and the body in parts."""
Turn = Callable[[], Awaitable[None]]


async def write(action: str, answer: Answer, request_id: str, turn: Turn, *, in_json: bool = False) -> Written:
    """With a turn for others after each step."""
    if not in_json:
        return CONTENT_TYPE, await in_steps(_in_xml(action, answer, request_id), turn)
    response: dict[str, object] = {}
    if answer.has_result:
        result = response[f"{action}Result"] = _members_in_json(msgspec.to_builtins(answer))
        messages = result.get("messages")
        if isinstance(messages, list):
            result["messages"] = [msgspec.Raw(part) for part in await json_protocol.each_written(messages, turn)]
    response["ResponseMetadata"] = {"RequestId": request_id}
    return JSON, [msgspec.json.encode({f"{action}Response": response})]


async def in_steps(parts: Iterable[bytes], turn: Turn) -> list[bytes]:
    written: list[bytes] = []
    some: list[bytes] = []
    some_bytes = 0
    for part in parts:
        some.append(part)
        some_bytes += len(part)
        if some_bytes >= WRITTEN_AT_ONCE:
            written.append(b"".join(some))
            some, some_bytes = [], 0
            await turn()
    return [*written, b"".join(some)]


def _in_xml(action: str, answer: Answer, request_id: str) -> Iterator[bytes]:
    yield f'<?xml version="1.0"?><{action}Response xmlns="{XMLNS}">'.encode()
    if answer.has_result:
        yield f"<{action}Result>".encode()
        for name, value in msgspec.to_builtins(answer).items():
            yield from _element(action, name, value)
        yield f"</{action}Result>".encode()
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    yield f"{metadata}</{action}Response>".encode()


def _element(action: str, name: str, value: object) -> Iterator[bytes]:
    flat = _Flat(action + "ResultEntry") if name == "Successful" else _ELEMENTS.get(name)
    if isinstance(value, list) and flat is not None:
        for member in value:
            yield from _wrapped(action, flat.parameter, member)
    elif isinstance(value, dict) and flat is not None:
        for key, member in value.items():
            yield f"<{flat.parameter}>".encode()
            yield from _wrapped(action, flat.key, key)
            yield from _wrapped(action, flat.value, member)
            yield f"</{flat.parameter}>".encode()
    else:
        yield from _wrapped(action, name, value)


def _wrapped(action: str, name: str, value: object) -> Iterator[bytes]:
    yield f"<{name}>".encode()
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _element(action, key, member)
    elif isinstance(value, bool):
        yield b"true" if value else b"false"
    else:
        yield from _text(str(value))
    yield f"</{name}>".encode()


def _text(text: str) -> Iterator[bytes]:
    """In parts, and without a call per character: a body may have a million that have to be escaped."""
    for start in range(0, len(text), WRITTEN_AT_ONCE):
        data = text[start : start + WRITTEN_AT_ONCE].encode()
        if not is_xml_text(data):
            # Only where limits are relaxed: XML cannot hold these.
            data = data.translate(_TO_ZERO)
            for unwritable in (b"\0", *NOT_XML_BEYOND):
                data = data.replace(unwritable, _UNKNOWN)
        for character, escaped in _ESCAPES:
            data = data.replace(character, escaped)
        yield data


def _members_in_json(value: dict[str, object]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, member in value.items():
        flat = _ELEMENTS.get(name)
        if isinstance(member, dict) and flat is not None:
            member = [{flat.key: key, flat.value: one} for key, one in member.items()]
        made[_NAMES_IN_JSON.get(str(name), str(name))] = _in_json(member)
    return made


def _in_json(value: object) -> object:
    """As the XML has it: maps are lists of pairs."""
    if isinstance(value, list):
        return [_in_json(member) for member in value]
    if not isinstance(value, dict):
        return value
    return _members_in_json(value)


def write_error(error: SqsError, request_id: str, *, in_json: bool = False) -> tuple[bytes, bytes]:
    kind = error.kind
    message = error.message
    if kind is QUEUE_DOES_NOT_EXIST:
        message = "The specified queue does not exist for this wsdl version."
    fault = "Sender" if kind.status < 500 else "Receiver"
    if in_json:
        details = {"Type": fault, "Code": kind.code, "Message": message, "Detail": None}
        return JSON, msgspec.json.encode({"Error": details, "RequestId": request_id})
    head = f'<?xml version="1.0"?><ErrorResponse xmlns="{XMLNS}"><Error><Type>{fault}</Type><Code>{kind.code}</Code>'
    tail = f"<Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    return CONTENT_TYPE, b"".join((head.encode(), *_wrapped("", "Message", message), tail.encode()))

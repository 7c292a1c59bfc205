"""`/openapi.json`, made from the structures that decode the requests and the table of routes; nothing is written twice.

What a schema cannot express is left to the answer: that of two parameters in a query only one may be given, that a name
has to be printable, and whatever depends on the queue, such as its priorities.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from smista import __version__
from smista.protocols.http import log_paths
from smista.protocols.http.claim_rows import ROWS_PATH, ClaimSlice
from smista.protocols.http.commands import COMMANDS
from smista.protocols.http.errors import ErrorAnswer
from smista.protocols.http.rest import TAKES_OCTETS
from smista.protocols.http.routes import ROUTES, Route
from smista.protocols.http.staged_put import STAGE_PATH, Staged, StageRows
from smista.service import arrow
from smista.service.fields import Choice
from smista.service.queue_settings import GivenSettings
from smista.service.values import BATCH_ID_LENGTH_MAX, ID_LENGTH_MAX, SETTING_RANGES

Schema = dict[str, Any]

_ARROW = arrow.CONTENT_TYPE.decode()
_REF = "#/components/schemas/{name}"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_ERRORS = {
    "400": "The request is malformed, or a field is missing, unknown or wrong",
    "403": "No permission; what it names is the broker's own; or a web page of another origin, or another host name",
    "404": "What it names does not exist",
    "405": "The method does not go with the path",
    "408": "The request took too long to arrive",
    "409": "The state of things forbids it",
    "410": "The queue was deleted meanwhile, the claim is over, or that part of the log was dropped",
    "413": "The request or the message is too large",
    "415": "The content type is not known, or the body has none",
    "429": "The queue is full; or too many requests wait on this stream, or read the log or the metrics",
    "431": "The headers are too large",
    "501": "It needs pyarrow, which is not installed where the broker runs",
    "503": "The broker is starting, stopping or has failed, or has too many connections",
    "507": "Disk or memory is low",
}
_PLAIN_ERRORS = ("400", "403", "405", "408", "413", "429", "431", "503")
_TAGS = {
    "broker": "The broker",
    "queue": "Queues and messages",
    "dlq": "Dead letters",
    "redrive": "Redrives",
    "scheduled": "Scheduled messages",
    "policy": "Policies",
    "exchange": "Exchanges",
    "claim": "Claims",
    "staged": "Staged publishes",
    "log": "The log in bulk",
}


def document() -> bytes:
    """The whole document, as JSON."""
    answer_kinds = {name: kind.answer for name, kind in COMMANDS.items()}
    log_kinds = [kind for pair in log_paths.PATHS.values() for kind in pair if kind is not None]
    kinds = [
        *COMMANDS.values(),
        *(kind for several in answer_kinds.values() for kind in several),
        *log_kinds,
        ClaimSlice,
        StageRows,
        Staged,
        ErrorAnswer,
    ]
    schemas, components = msgspec.json.schema_components([*kinds, GivenSettings], ref_template=_REF)
    _complete(components)
    by_kind = dict(zip([*kinds, GivenSettings], schemas, strict=True))
    requests = {name: _resolve(by_kind[kind], components) for name, kind in COMMANDS.items()}
    answers = {name: _any_of([by_kind[kind] for kind in several]) for name, several in answer_kinds.items()}
    settings = by_kind[GivenSettings]
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = _operation(route, requests[route.command], answers[route.command], settings)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    paths["/v1/command"] = {"post": _command_operation(requests, answers)}
    paths |= {path: {"get": _log_operation(path, by_kind, components)} for path in log_paths.PATHS}
    paths[ROWS_PATH] = {"get": _rows_operation(_resolve(by_kind[ClaimSlice], components))}
    paths[STAGE_PATH] = {"put": _stage_operation(_resolve(by_kind[StageRows], components), by_kind[Staged])}
    paths |= _plain_paths()
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Smista",
                "version": __version__,
                "description": "A durable message-queue broker. The same commands go over POST /v1/command, "
                "these paths, and the WebSocket /v1/stream. In MessagePack, bytes are binary rather than base64.",
            },
            "tags": [{"name": text} for text in _TAGS.values()],
            "paths": paths,
            "components": {"schemas": components},
        }
    )


# -- schemas ----------------------------------------------------------------------------------------------------------


def _complete(components: dict[str, Schema]) -> None:
    """What msgspec does not know: which text is base64, and the ranges that the core checks."""
    for schema in _every_schema(components):
        if schema.get("contentEncoding") == "base64":
            schema["pattern"] = _BASE64
    for name, (least, most) in SETTING_RANGES.items():
        field = components["GivenSettings"]["properties"][name]
        number = field["anyOf"][0] if "anyOf" in field else field
        number |= {"minimum": least, "maximum": most}


def _every_schema(value: object) -> Iterable[Schema]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _every_schema(inner)


def _any_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _resolve(schema: Schema, components: dict[str, Schema]) -> Schema:
    name = schema["$ref"].rpartition("/")[2]
    return components[name]


def _payload(command: str, schema: Schema, *, without: Iterable[str] = ()) -> Schema:
    """A command's fields, but for those that are given elsewhere, as a schema that knows what goes together."""
    elsewhere = set(without)
    choices: tuple[Choice, ...] = COMMANDS[command].choices
    made = [choice for choice in choices if elsewhere & set(choice.fields)]
    elsewhere |= {name for choice in made for name in choice.fields}
    left = {name: value for name, value in schema["properties"].items() if name not in elsewhere}
    whole = _object(left, [name for name in schema.get("required", []) if name in left])
    if command == "queue.create":
        # It has two names for one field; here it has one.
        del whole["properties"]["name"]
        _require(whole, "queue")
    variants = [whole]
    for choice in (choice for choice in choices if choice not in made):
        variants = [narrowed for variant in variants for narrowed in _narrowed(variant, choice)]
    for variant in variants:
        # A message is named together with its queue.
        if "message_id" in variant["required"] and "queue" in left:
            _require(variant, "queue")
    return variants[0] if len(variants) == 1 else {"anyOf": variants}


def _is_needed(schema: Schema) -> bool:
    """Whether something must be given."""
    return all(variant["required"] for variant in schema.get("anyOf", [schema]))


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _narrowed(variant: Schema, choice: Choice) -> list[Schema]:
    """One variant for each of the fields; without any of the others, and with it where one is required."""
    found = []
    for name in choice.fields:
        others = set(choice.fields) - {name}
        left = {field: value for field, value in variant["properties"].items() if field not in others}
        if name not in left or others & set(variant["required"]):
            continue
        narrowed = _object(left, list(variant["required"]))
        if choice.is_required:
            _require(narrowed, name)
        found.append(narrowed)
    return found


def _require(schema: Schema, name: str) -> None:
    """A field that must be given may not be null."""
    if name not in schema["required"]:
        schema["required"].append(name)
    field = schema["properties"][name]
    choices = [one for one in field.get("anyOf", []) if one != {"type": "null"}]
    if choices:
        schema["properties"][name] = choices[0]


# -- operations -------------------------------------------------------------------------------------------------------


def _operation(route: Route, schema: Schema, answer: Schema, settings: Schema) -> dict[str, Any]:
    operation = _head(route.command, f"{route.method.lower()}{route.path}".replace("/", "_"))
    operation["parameters"] = _parameters(route, schema)
    if route.body == "settings":
        operation["requestBody"] = _body(settings, is_required=route.command != "queue.declare")
    elif route.body == "fields":
        fields = _payload(route.command, schema, without=(*route.path_fields, "namespace"))
        operation["requestBody"] = _body(fields, is_required=_is_needed(fields))
        operation["description"] += " What is not in the path may stand in the query or in the body."
    if route.command in TAKES_OCTETS:
        operation["requestBody"]["content"]["application/octet-stream"] = {"schema": {}}
        # No octets are a message too.
        operation["requestBody"]["required"] = False
        operation["parameters"].append(_idempotency_key(ID_LENGTH_MAX))
    elif route.command == "queue.publish_batch":
        operation["parameters"].append(_idempotency_key(BATCH_ID_LENGTH_MAX))
    operation["responses"] = _responses(str(route.status), answer)
    if route.command == "queue.declare":
        operation["responses"]["201"] = {"description": "Made", "content": _content(answer)}
    if route.command == "queue.receive":
        # Octets come under the content type of the message.
        operation["responses"]["200"]["content"]["*/*"] = {"schema": {}}
        operation["responses"]["204"] = {"description": "No message, where octets were asked for"}
    return operation


def _idempotency_key(length_max: int | None = None) -> dict[str, Any]:
    schema: Schema = {"type": "string"}
    if length_max is not None:
        schema |= {"minLength": 1, "maxLength": length_max, "pattern": r'[^\s"]'}
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": schema,
        "description": "Makes a publish safe to repeat",
    }


def _head(command: str, operation_id: str) -> dict[str, Any]:
    summary = inspect.getdoc(cast(type, COMMANDS[command])) or ""
    return {
        "operationId": operation_id,
        "summary": summary.splitlines()[0].rstrip("."),
        "description": f"The command `{command}`.",
        "tags": [_TAGS[command.partition(".")[0]]],
    }


def _parameters(route: Route, schema: Schema) -> list[dict[str, Any]]:
    properties: dict[str, Any] = schema["properties"]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(properties[name])}
        for name in route.path_fields
    ]
    queried = [name for name in properties if name not in route.path_fields]
    if route.body == "fields":
        queried = ["namespace"]
    elif route.body == "settings":
        queried.remove("settings")
    required = schema.get("required", [])
    for name in queried:
        parameter: dict[str, Any] = {"name": name, "in": "query", "required": name in required}
        if _is_object(properties[name]):
            parameter["content"] = {"application/json": {"schema": properties[name]}}
        else:
            parameter["schema"] = properties[name]
        parameters.append(parameter)
    return parameters


def _path_schema(schema: Schema) -> Schema:
    """What stands in a path is never empty."""
    pattern = {"pattern": schema["pattern"]} if "pattern" in schema else {}
    return {"type": "string", "minLength": 1, "maxLength": schema.get("maxLength", 255), **pattern}


def _is_object(schema: Schema) -> bool:
    choices = schema.get("anyOf", [schema])
    return any(choice.get("type") in ("object", "array") or "$ref" in choice for choice in choices)


def _body(schema: Schema, *, is_required: bool) -> dict[str, Any]:
    return {"required": is_required, "content": _content(schema)}


def _content(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}, "application/msgpack": {"schema": schema}}


def _responses(status: str, answer: Schema) -> dict[str, Any]:
    error = _content({"$ref": _REF.format(name="ErrorAnswer")})
    responses: dict[str, Any] = {status: {"description": "Done", "content": _content(answer)}}
    for code, description in _ERRORS.items():
        responses[code] = {"description": description, "content": error}
    return responses


def _request(command: str, payload: Schema) -> Schema:
    required = ["command", "payload"] if _is_needed(payload) else ["command"]
    return _object({"command": {"const": command}, "payload": payload}, required)


def _command_operation(requests: dict[str, Schema], answers: dict[str, Schema]) -> dict[str, Any]:
    choices = [_request(name, _payload(name, schema)) for name, schema in requests.items()]
    unique = list({msgspec.json.encode(answer): answer for answer in answers.values()}.values())
    return {
        "operationId": "post_v1_command",
        "summary": "Any command, by name",
        "tags": [_TAGS["broker"]],
        "parameters": [_idempotency_key()],
        "requestBody": _body({"oneOf": choices}, is_required=True),
        "responses": _responses("200", {"anyOf": unique}),
    }


def _log_operation(path: str, by_kind: dict[Any, Schema], components: dict[str, Schema]) -> dict[str, Any]:
    query, answer = log_paths.PATHS[path]
    responses = _responses("200", {} if answer is None else by_kind[answer])
    if answer is None:
        responses["200"]["content"] = {_ARROW: {"schema": {}}}
    return _arrow_operation(query, "log", Route("GET", path, ""), _resolve(by_kind[query], components)) | {
        "responses": responses
    }


def _rows_operation(schema: Schema) -> dict[str, Any]:
    responses = _responses("200", {})
    responses["200"]["content"] = {_ARROW: {"schema": {}}}
    return _arrow_operation(ClaimSlice, "claim", Route("GET", ROWS_PATH, ""), schema) | {"responses": responses}


def _stage_operation(schema: Schema, answer: Schema) -> dict[str, Any]:
    operation = _arrow_operation(StageRows, "staged", Route("PUT", STAGE_PATH, ""), schema)
    operation["requestBody"] = {"required": True, "content": {_ARROW: {"schema": {}}}}
    return operation | {"responses": _responses("200", answer)}


def _arrow_operation(kind: type[msgspec.Struct], tag: str, route: Route, schema: Schema) -> dict[str, Any]:
    properties: dict[str, Any] = schema["properties"]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": properties[name]} for name in route.path_fields
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": properties[name]}
        for name in properties
        if name not in route.path_fields
    ]
    return {
        "operationId": f"{route.method.lower()}{route.path}".replace("/", "_"),
        "summary": (inspect.getdoc(kind) or "").rstrip("."),
        "description": "See docs/bulk.md.",
        "tags": [_TAGS[tag]],
        "parameters": parameters,
    }


def _plain_paths() -> dict[str, Any]:
    def plain(summary: str, content_type: str, *more: tuple[str, str]) -> dict[str, Any]:
        responses: dict[str, Any] = {"200": {"description": "Done", "content": {content_type: {"schema": {}}}}}
        error = _content({"$ref": _REF.format(name="ErrorAnswer")})
        for code in _PLAIN_ERRORS:
            responses[code] = {"description": _ERRORS[code], "content": error}
        for code, description in more:
            responses[code] = {"description": description, "content": {content_type: {"schema": {}}}}
        return {"get": {"summary": summary, "tags": [_TAGS["broker"]], "responses": responses}}

    return {
        "/healthz": plain("Whether the process is alive", "text/plain"),
        "/readyz": plain("Whether it has recovered and its log is well", "text/plain", ("503", "Not ready")),
        "/metrics": plain("Metrics for Prometheus", "text/plain"),
        "/openapi.json": plain("This document", "application/json"),
        "/": plain("This document, for people", "text/html"),
    }

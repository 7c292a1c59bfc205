"""A server's settings, and where they come from: flags win over `SMISTA_*` variables, those over the TOML file, that
over the defaults. Every field has its default here (or in `BrokerSettings`) and nowhere else.

A name that is not known is an error, wherever it stands: a misspelt limit that is silently left out is found on the
day it was needed.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from smista.engine.settings import MIB, BrokerSettings
from smista.server.errors import InvalidConfiguration

KIB = 1 << 10
PREFIX = "SMISTA_"
NOT_SETTINGS = frozenset({"SMISTA_CONFIG", "SMISTA_LONG", "SMISTA_URL"})
"""Variables that look like a setting's and are none: where the file is, a switch of our tests, a client's address."""
TEST_PREFIX = "SMISTA_TEST_"
_OF_KUBERNETES = re.compile(
    r"SMISTA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")
"""Kubernetes tells every container of a service named smista, or smista-amqp, where it is: by such variables, and by
SMISTA_PORT=tcp://10.0.0.1:5672, which may have the very name of a setting."""

Port = Annotated[int, Meta(ge=0, le=65_535)]
Timeout = Annotated[float, Meta(ge=0.01, le=86_400.0)]


class ServerSettings(BrokerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server, those of its broker among them under the same names."""

    data: str = "data"
    """The directory of the log. A relative one starts where the server was started."""
    memory: bool = False
    """Keep everything in memory only: `data` is not touched, and a stop loses it all."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for every one of the machine."""
    http_port: Port = 9324
    """The port for HTTP and WebSocket; 0 picks a free one."""
    amqp_port: Port = 5672
    """The port for AMQP; 0 picks a free one."""
    amqp_body_bytes_max: Annotated[int, Meta(ge=1, le=1 << 31)] = 128 * MIB
    """The largest body over AMQP, which a queue that is declared there takes; 128 MiB as in RabbitMQ."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe of the lines that are logged."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line for machines."""
    on_damage: Literal["refuse", "serve"] = "refuse"
    """What to do with a damaged log: do not start, or serve what can be read."""
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Connections over HTTP, WebSockets among them, that may be open at once; one more is answered 503."""
    header_bytes_max: Annotated[int, Meta(ge=256, le=MIB)] = 64 * KIB
    """The longest head of a request, request line and headers; a longer one is answered 431."""
    request_bytes_max: Annotated[int, Meta(ge=KIB, le=1 << 31)] = 16 * MIB
    """The longest body of a request; a longer one is answered 413, before it is read if it says its length."""
    staged_bytes_max: Annotated[int, Meta(ge=KIB, le=1 << 40)] = 1024 * MIB
    """The longest stream of Arrow that is staged at once; a longer one is answered 413."""
    staged_total_bytes_max: Annotated[int, Meta(ge=KIB, le=1 << 50)] = 8192 * MIB
    """What may be staged by everybody together; more is answered 507 until something is committed or discarded."""
    staged_expires_ms: Annotated[int, Meta(ge=1, le=1 << 52)] = 3_600_000
    """What was staged and nobody has committed after this long is discarded."""
    header_timeout_s: Timeout = 10.0
    """How long the head of a request may take, from its first byte or from connecting; then it is answered 408."""
    body_timeout_s: Timeout = 30.0
    """In every stretch this long, a body that is being sent has to grow by 1 KiB per second, or it is answered 408; so
    has a message on a WebSocket. A reader has to take as much of what waits for it, or its connection is cut."""
    keep_alive_s: Timeout = 75.0
    """How long a connection may be idle between two requests."""
    output_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=1 << 40)] = 16 * MIB
    """A reader that stands still while more than this waits for it is cut off after 5 s rather than `body_timeout_s`,
    and a WebSocket's whose pings make more than this wait, at once."""
    bulk_timeout_s: Timeout = 600.0
    """How long a reader of the log in bulk may take nothing; then its connection is cut. Waiting for it costs nobody
    anything, so this may be as long as a slow job needs for one batch."""
    drain_timeout_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 30.0
    """How long a stopping server lets requests and confirms finish."""
    websocket_ping_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 20.0
    """How often a WebSocket is pinged, and how long it may take to answer; 0 for never."""
    websocket_frame_bytes_max: Annotated[int, Meta(ge=KIB, le=1 << 31)] = 16 * MIB
    """The longest message on a WebSocket, whole or in fragments; a longer one closes it with 1009."""
    allowed_hosts: tuple[str, ...] | None = None
    """Names that this broker goes by over HTTP, beside localhost, this machine's own, `host` and every address:
    broker.example.com, or *.example.com, or * for any. A request under another name is answered 403."""
    allowed_origins: tuple[str, ...] | None = None
    """Origins whose web pages may use this broker from a browser, such as https://app.example.com, or * for any. All
    others are answered 403, except the broker's own page."""
    sqs_account: str = "000000000000"
    """The account whose SQS queues are those of the other protocols, in `sqs_region`: 12 digits."""
    sqs_region: str = "us-east-1"
    """The region whose SQS queues are those of the other protocols."""
    sqs_region_urls: bool = False
    """Name the region in the URL of every SQS queue, not only outside `sqs_region`."""
    sqs_access_keys: str | None = None
    """Who may use SQS, as KEY:SECRET,KEY:SECRET; requests must then be signed. Without, only this machine may."""
    sqs_strict_timing: bool = False
    """Keep the 60 seconds that AWS keeps after DeleteQueue and PurgeQueue."""
    sqs_relaxed: bool = False
    """Lift AWS's limits on sizes, counts, times and characters; the broker's own stay."""
    sqs_requests_per_second: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    """How many SQS requests an account may make in a second, on average; more are RequestThrottled."""
    sqs_actions_off: tuple[str, ...] | None = None
    """Actions of SQS that are not offered, as PurgeQueue,DeleteQueue; they are answered with UnsupportedOperation."""

    def access_keys(self) -> dict[str, str]:
        """The pairs of `sqs_access_keys`: secret by key."""
        pairs = (pair.strip().partition(":") for pair in (self.sqs_access_keys or "").split(",") if pair.strip())
        return {key: secret for key, _, secret in pairs}

    def broker(self) -> BrokerSettings:
        settings = BrokerSettings(**{name: getattr(self, name) for name in BrokerSettings.__struct_fields__})
        if self.memory:
            # No other process can read such a log: what is kept for readers would only take memory.
            settings = msgspec.structs.replace(settings, log_retention_ms=0, log_retention_bytes=0)
        return settings


_NAMES = tuple[str, ...] | None
_FIELDS = {field.name: field for field in msgspec.structs.fields(ServerSettings)}

RANGES = {
    name: (found.ge, found.le)
    for name, field in _FIELDS.items()
    for kind in (field.type, *typing.get_args(field.type))
    for found in getattr(kind, "__metadata__", ())
}
"""By setting: the least and the most."""


class _Given(msgspec.Struct, frozen=True):
    """One setting as somebody wrote it."""

    name: str
    value: object
    where: str
    is_text: bool = False
    """Whether everything is text where it comes from, so that "9324" is a number."""


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> ServerSettings:
    """The settings that flags, variables and file give together.

    `flags` are named as the settings are; one that is None was not given. `file` is what `--config` named; without it
    SMISTA_CONFIG may name one. Raises `InvalidConfiguration`.
    """
    if file is None and environ.get("SMISTA_CONFIG"):
        file = Path(environ["SMISTA_CONFIG"])
    chosen: dict[str, object] = {}
    places: dict[str, str] = {}
    for source in (_from_file(file), _from_variables(environ), _from_flags(flags)):
        for given in source:
            chosen[given.name] = _checked(given)
            places[given.name] = given.where
    settings = msgspec.convert(chosen, ServerSettings)
    _check_ports(settings, places)
    _check_access(settings, places)
    _check_sqs(settings, places)
    return settings


def variable(name: str) -> str:
    """The variable that sets the setting `name`."""
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """The flag of `smista serve` that sets the setting `name`."""
    return "--" + name.replace("_", "-")


def _from_file(file: Path | None) -> Iterator[_Given]:
    if file is None:
        return
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfiguration(f"The configuration file {file} cannot be read: {why}.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"The configuration file {file} is not TOML: {error}.") from None
    for name, value in table.items():
        where = f"in {file}{_line(text, name)}"
        if isinstance(value, dict):
            raise InvalidConfiguration(
                f"{name!r} {where} is a section; settings stand at the top of the file, in no section."
            )
        if name not in _FIELDS:
            raise _unknown(f"{name} {where}", name, spell=str)
        yield _Given(name, value, where)


def _line(text: str, name: str) -> str:
    """Where the file says something about `name`; nothing where that is not known, as with quoted names."""
    pattern = re.compile(rf"\s*(\[+\s*)?{re.escape(name)}\s*[\].=]")
    for number, line in enumerate(text.splitlines(), start=1):
        if pattern.match(line):
            return f", line {number}"
    return ""


def _from_variables(environ: Mapping[str, str]) -> Iterator[_Given]:
    settings = {variable(name): name for name in _FIELDS}
    for written, value in sorted(environ.items()):
        if not written.startswith(PREFIX) or written.startswith(TEST_PREFIX) or written in NOT_SETTINGS:
            continue
        if _OF_KUBERNETES.fullmatch(written) or (written.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.match(value)):
            continue
        if written not in settings:
            raise _unknown(f"The variable {written}", written.removeprefix(PREFIX).lower(), spell=variable)
        yield _Given(settings[written], value, f"from variable {written}", is_text=True)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in flags.items():
        if value is None:
            continue
        if name not in _FIELDS:
            raise _unknown(f"The flag {flag(name)}", name, spell=flag)
        yield _Given(name, value, f"from flag {flag(name)}", is_text=isinstance(value, str))


def _unknown(what: str, name: str, *, spell: Callable[[str], str]) -> InvalidConfiguration:
    near = [spell(found) for found in difflib.get_close_matches(name, _FIELDS, n=3)]
    cure = f"did you mean {' or '.join(near)}?" if near else "take it out, or see docs/settings.md for what there is."
    return InvalidConfiguration(f"{what} is not a setting; {cure}")


def _checked(given: _Given) -> object:
    """The value in its own type and range."""
    kind = _FIELDS[given.name].type
    value = given.value
    # TOML has no word for none, and whoever writes a variable does not think of "null".
    if isinstance(value, str) and value.lower() == "none" and _may_be_none(kind):
        return None
    if isinstance(value, str) and value and kind == _NAMES:
        value = [name.strip() for name in value.split(",")]
    try:
        value = msgspec.convert(value, kind, strict=not given.is_text)
    except msgspec.ValidationError:
        raise _unfit(given) from None
    if value is None or (isinstance(value, str) and not value):
        raise _unfit(given)
    if given.name in RANGES:
        least, most = RANGES[given.name]
        # A float that is no number is in no range.
        if not least <= value <= most:
            raise _unfit(given)
    return typing.cast(object, value)


def _unfit(given: _Given) -> InvalidConfiguration:
    return InvalidConfiguration(f"{given.name} is {given.value!r:.80} {given.where}; give {takes(given.name)}.")


def takes(name: str) -> str:
    """What the setting `name` takes, in words."""
    kind = _FIELDS[name].type
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if kind is bool:
        return "true or false"
    if kind is str:
        return "text"
    if kind == str | None:
        return "text, or none"
    if kind == _NAMES:
        return "names with commas between them, or none"
    least, most = RANGES[name]
    words = f"a {'number' if float in typing.get_args(kind) else 'whole number'} from {least} to {_shown(most)}"
    return f"{words}, or none" if _may_be_none(kind) else words


def _shown(limit: float) -> str:
    """Large limits are powers of two, and are easier to read as such."""
    return f"2^{int(limit).bit_length() - 1}" if limit > MIB else str(limit)


def _may_be_none(kind: object) -> bool:
    return type(None) in typing.get_args(kind)


def _check_ports(settings: ServerSettings, places: Mapping[str, str]) -> None:
    if settings.http_port == settings.amqp_port != 0:
        where = "; ".join(f"{name} {places[name]}" for name in ("http_port", "amqp_port") if name in places)
        raise InvalidConfiguration(
            f"http_port and amqp_port are both {settings.http_port} ({where}); give them different ones."
        )


def _check_access(settings: ServerSettings, places: Mapping[str, str]) -> None:
    if not settings.allowed_hosts and not settings.allowed_origins:
        return
    # Only who uses it waits until that is loaded.
    from smista.protocols.http.access import is_host, is_origin

    for name in settings.allowed_hosts or ():
        if not is_host(name):
            raise InvalidConfiguration(
                f"allowed_hosts has {name!r:.80} {places['allowed_hosts']}; give names without scheme and port, such "
                "as broker.example.com or *.example.com."
            )
    for origin in settings.allowed_origins or ():
        if not is_origin(origin):
            raise InvalidConfiguration(
                f"allowed_origins has {origin!r:.80} {places['allowed_origins']}; give origins as a browser writes "
                "them, such as https://app.example.com or http://localhost:3000."
            )


def _check_sqs(settings: ServerSettings, places: Mapping[str, str]) -> None:
    if not re.fullmatch(r"[0-9]{12}", settings.sqs_account):
        raise InvalidConfiguration(
            f"sqs_account is {settings.sqs_account!r:.80} {places['sqs_account']}; give 12 digits."
        )
    if not re.fullmatch(r"[a-z0-9-]{1,40}", settings.sqs_region):
        raise InvalidConfiguration(
            f"sqs_region is {settings.sqs_region!r:.80} {places['sqs_region']}; give a name such as us-east-1."
        )
    # The error about a list of secrets does not show them.
    for place, pair in enumerate((settings.sqs_access_keys or "a:b").split(","), start=1):
        key, _, secret = pair.strip().partition(":")
        if not key or not secret:
            raise InvalidConfiguration(
                f"Entry {place} of sqs_access_keys {places['sqs_access_keys']} is not KEY:SECRET; "
                "give pairs like that, with commas between them."
            )
    if settings.sqs_actions_off:
        # Only who uses it waits until all of SQS is loaded.
        from smista.protocols.sqs.actions import ACTIONS

        for name in settings.sqs_actions_off:
            if name not in ACTIONS:
                near = difflib.get_close_matches(name, ACTIONS, n=1)
                cure = f"did you mean {near[0]}?" if near else "take it out, or see docs/sqs.md for what there is."
                raise InvalidConfiguration(
                    f"sqs_actions_off names {name!r:.80} {places['sqs_actions_off']}, which is no action of SQS; {cure}"
                )

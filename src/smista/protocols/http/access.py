"""Which requests are let in at all, and the headers by which browsers keep answers to themselves.

A broker that has no password is open to every program that reaches it. Web pages are such programs, and anybody's: a
page from anywhere runs in the browser of somebody who can reach the broker. Two things distinguish it from other
clients, and no page can change them:

    Host             the name by which the browser went here. A page may have its own name point to this machine (DNS
                     rebinding), so a name has to be one of ours. An address needs no look-up, so any address will do.
    Origin,          whose page it is. `HttpApp` serves what comes from its own page, from an allowed origin, and
    Sec-Fetch-Site   from programs that are no browsers, which send neither.

`HttpApp.__call__` asks here before it reads the path, so that no route can forget to, SQS and WebSockets included.
What a page can still send without either (old browsers: an image, a script, a link) is a GET, and no GET changes
anything. docs/decisions/027-browsers.md has the reasons, docs/http.md the rules for users.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import logging
import re
from collections.abc import Iterable
from typing import NamedTuple

from smista.errors import HostNotAllowed, InvalidRequest, OriginNotAllowed
from smista.protocols.http import page
from smista.protocols.refusing import Refusing
from smista.protocols.web.asgi import Event, Scope, Send, client_of, text_of

logger = logging.getLogger("smista.http")

ANY = "*"
READABLE_BY = "smista.readable_by"
"""Where a scope says which foreign origin may read the answer."""
KNOWN_HOSTS_MAX = 1_000
PREFLIGHT_S = 600

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@\s]+)")
_PORTS = {"http": "80", "https": "443"}


def _hashes(tag: bytes) -> str:
    """The sources of a policy that let exactly what stands in the page between these tags run."""
    parts = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page.PAGE, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(part).digest()).decode()}'" for part in parts)


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hashes(b'script')}",
        f"style-src {_hashes(b'style')}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Of every answer, whoever writes it: one policy for all of them, so that none needs its own."""


class Place(NamedTuple):
    """A host and, where it was given, a port."""

    name: str
    port: str


class Access:
    def __init__(self, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """`hosts` are names beside those of loopback: `broker.example.com`, `*.example.com`, or `*` for any.
        `origins` are those whose pages may read and change what is here: `https://app.example.com`, or `*`."""
        named = {_plain_name(name) for name in hosts}
        self._is_any_host = ANY in named
        self._hosts = frozenset(name for name in named if not name.startswith("*"))
        self._endings = (".localhost", *(name[1:] for name in named if name.startswith("*.")))
        origins = [origin.lower().rstrip("/") for origin in origins]
        self._is_any_origin = ANY in origins
        self._origins = frozenset(origins)
        self._known_hosts: set[bytes] = set()
        """Values of `Host` that were good; each request is checked against them."""
        self.refusing = Refusing(logger, "requests are refused", protocol="http")

    def check(self, scope: Scope) -> bytes | None:
        """The foreign origin that was allowed to ask, which may then read the answer. Raises why it may not ask."""
        try:
            return self._check(scope)
        except (HostNotAllowed, OriginNotAllowed) as error:
            self.refusing.note(str(error), client_of(scope))
            raise

    def _check(self, scope: Scope) -> bytes | None:
        origins: list[bytes] | None = None
        host: bytes | None = None
        site = b""
        for name, value in scope.get("headers", ()):
            if name == b"host":
                if value not in self._known_hosts:
                    self._check_host(value)
                host = value
            elif name == b"origin":
                origins = [*(origins or ()), value]
            elif name == b"sec-fetch-site":
                site = value
        if host is None and scope.get("http_version") == "1.1":
            raise InvalidRequest("A request of HTTP/1.1 has a `Host` header; send it.")
        if origins is not None:
            foreign = [origin for origin in origins if not _is_own(origin, host or b"")]
            for origin in foreign:
                self._check_origin(origin)
            return foreign[0] if foreign else None
        if site and site not in (b"same-origin", b"none") and not self._is_any_origin and not _opens_page(scope):
            raise OriginNotAllowed(
                f"A page of another site asked for this (Sec-Fetch-Site: {text_of(site)[:40]!r}), and did not say "
                "which; only pages that `allowed_origins` names may ask, by fetch in mode cors."
            )
        return None

    def _check_host(self, value: bytes) -> None:
        place = _place(text_of(value))
        if place is None or not (self._is_any_host or self._is_our_name(place.name)):
            shown = text_of(value)[:100] if place is None else place.name[:100]
            raise HostNotAllowed(
                f"This broker does not go by the name {shown!r}. If it is one of its names, say so: "
                "`allowed_hosts` in the configuration, SMISTA_ALLOWED_HOSTS or --allowed-hosts. "
                "Its address works without."
            )
        # What many may choose, as with `*`, must not grow for ever.
        if len(self._known_hosts) >= KNOWN_HOSTS_MAX:
            self._known_hosts.clear()
        if len(value) <= 300:
            self._known_hosts.add(value)

    def _is_our_name(self, name: str) -> bool:
        # HTTP/1.0 may leave it out, and browsers never do.
        return name in ("", "localhost") or name in self._hosts or name.endswith(self._endings) or _is_address(name)

    def _check_origin(self, origin: bytes) -> None:
        if not self._is_any_origin and text_of(origin).lower() not in self._origins:
            raise OriginNotAllowed(
                f"Pages of {text_of(origin)[:100]!r} may not use this broker. If they should, say so: "
                "`allowed_origins` in the configuration, SMISTA_ALLOWED_ORIGINS or --allowed-origins."
            )


def _opens_page(scope: Scope) -> bool:
    """Whether somebody follows a link to the page at `/`, in a window of its own. It has nothing that is secret."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    if scope["path"] != "/" or scope["query_string"]:
        return False
    given = {name: value for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    return given.get(b"sec-fetch-mode") == b"navigate" and given.get(b"sec-fetch-dest") == b"document"


# -- names and origins ------------------------------------------------------------------------------------------------


def _place(text: str) -> Place | None:
    found = _HOST.fullmatch(text.strip())
    return None if found is None else Place(_plain_name(found[1]), found[2] or "")


def _plain_name(text: str) -> str:
    return text.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    """An address with nothing to look up: whoever went there by it did not follow somebody's name."""
    if name.startswith("["):
        name = name[1:-1].partition("%")[0]
    elif ":" in name:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: bytes, host: bytes) -> bool:
    """Whether a page came from where it sends its request. Not by scheme: there may be TLS in front of us."""
    found = _ORIGIN.fullmatch(text_of(origin).lower())
    if found is None or not host:
        return False
    page_at, asked_at = _place(found[2]), _place(text_of(host))
    if page_at is None or asked_at is None or page_at.name != asked_at.name:
        return False
    usual = _PORTS.get(found[1], "")
    return (page_at.port or usual) == (asked_at.port or usual)


def is_origin(text: str) -> bool:
    """Whether a setting can name this as an origin."""
    found = _ORIGIN.fullmatch(text.lower().rstrip("/"))
    place = None if found is None else _place(found[2])
    if place is None or "*" in place.name:
        return text == ANY
    return is_host(place.name) or _is_address(place.name)


def is_host(text: str) -> bool:
    """Whether a setting can name this as a host: a name, with `*.` before it or without, and no port."""
    return text == ANY or re.fullmatch(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", text.lower()) is not None


# -- pages of allowed origins -----------------------------------------------------------------------------------------


def is_preflight(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "OPTIONS")


async def respond_preflight(scope: Scope, origin: bytes, send: Send) -> None:
    """Answer a browser that asks what a page of an allowed origin may send: whatever it wants to."""
    asked = {name: value for name, value in scope["headers"] if name.startswith(b"access-control-request-")}
    headers = [
        *_readable_by(origin),
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", asked.get(b"access-control-request-headers", b"content-type")),
        (b"access-control-max-age", b"%d" % PREFLIGHT_S),
    ]
    if b"access-control-request-private-network" in asked:
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def readable(send: Send, origin: bytes) -> Send:
    """`send`, with what lets pages of this origin read the answer."""

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event["headers"], *_readable_by(origin)]
        await send(event)

    return sending


def head_lines(scope: Scope) -> str:
    """The same as lines of a head, for an answer that somebody else writes."""
    origin: bytes | None = scope.get(READABLE_BY)
    headers = SECURITY_HEADERS if origin is None else SECURITY_HEADERS + _readable_by(origin)
    return "".join(f"{name.decode()}: {value.decode('latin-1')}\r\n" for name, value in headers)


def _readable_by(origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    )

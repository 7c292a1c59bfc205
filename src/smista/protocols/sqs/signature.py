"""Signature Version 4: who sent a request, and proof of it, in a header or (presigned) in the URL.

The credential names an access key and a region even where nothing is verified: an access key of 12 digits is an
account of its own. Proof is asked for as soon as access keys are configured, and then the caller is who the verified
signature says and nobody else: there is one reading of it, and whatever could be read in two ways is refused. What is
signed:

    method, path, parameters, chosen headers, hash of the body ── with a key made of secret, day, region, service

How it works is described in AWS's documentation, "Signature Version 4 signing process".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from smista.caches import cached_if_small
from smista.protocols.sqs.addresses import is_account, is_region
from smista.protocols.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    INVALID_CLIENT_TOKEN,
    INVALID_SECURITY,
    MISSING_TOKEN,
    SIGNATURE_DOES_NOT_MATCH,
    SqsError,
)
from smista.protocols.sqs.limits import SqsSettings
from smista.protocols.web.asgi import Scope, header
from smista.service.principal import ANYONE

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S = 15 * 60
EXPIRES_S_MAX = 7 * 24 * 60 * 60
DIGITS_MAX = 15
_MUST_BE_SIGNED = "x-amz-"
_ONCE = frozenset(("authorization", "content-type", "date", "host"))
_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")


class Caller(NamedTuple):
    account: str
    region: str
    name: str = ANYONE
    """Of its principal: the account, where the signature proves it."""


class Signature(NamedTuple):
    access_key: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    stamp: str
    expires_s: int | None
    """For how long a presigned URL is good; None for a signed header."""


def unverified(scope: Scope, settings: SqsSettings) -> Caller:
    """The caller that a request names, without proof; the defaults where it names none."""
    authorization = header(scope, b"authorization")
    if authorization is not None:
        credential = _parts(authorization.decode("latin-1").partition(" ")[2]).get("Credential", "")
    else:
        credential = _parameters(scope["query_string"]).get("X-Amz-Credential", "")
    access_key, *reach = credential.split("/")
    account = access_key if is_account(access_key) else settings.account
    region = reach[1] if len(reach) == 4 and is_region(reach[1]) else settings.region
    return Caller(account, region)


def verified(scope: Scope, body: bytes, settings: SqsSettings, now_ms: int) -> Caller:
    """Who signed the request. Raises unless that was now, with one of the configured keys."""
    headers = _headers(scope)
    query = scope["query_string"]
    signature = _read(headers, query)
    secret = settings.access_keys.get(signature.access_key)
    if secret is None:
        raise SqsError(INVALID_CLIENT_TOKEN, "The security token included in the request is invalid.")
    if signature.service != "sqs" or not signature.stamp.startswith(signature.day):
        raise SqsError(
            SIGNATURE_DOES_NOT_MATCH,
            "Credential should be scoped to correct service: 'sqs', and to the day of the request's date.",
        )
    if not is_region(signature.region):
        raise SqsError(SIGNATURE_DOES_NOT_MATCH, "Credential should be scoped to a valid region.")
    _check_all_signed(headers, signature)
    _check_time(signature, now_ms)
    expected = _sign(scope, headers, query, body, signature, secret)
    if not hmac.compare_digest(expected.encode(), signature.signature.encode("utf-8", "replace")):
        raise SqsError(
            SIGNATURE_DOES_NOT_MATCH,
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details.",
        )
    account = signature.access_key if is_account(signature.access_key) else settings.account
    return Caller(account, signature.region, account)


def _headers(scope: Scope) -> dict[str, str]:
    """Names in lower case; a header that is given several times is joined by commas, where that is allowed."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        key = name.decode("latin-1")
        if key in found and (key in _ONCE or key.startswith(_MUST_BE_SIGNED)):
            raise _incomplete(f"Header '{key[:100]}' is given twice")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _check_all_signed(headers: dict[str, str], signature: Signature) -> None:
    """They decide what is done, as X-Amz-Target does: unsigned, a captured request could be made to do something
    else."""
    for name in headers:
        if name.startswith(_MUST_BE_SIGNED) and name not in signature.signed_headers:
            raise SqsError(
                SIGNATURE_DOES_NOT_MATCH, f"'{name[:100]}' must be a 'SignedHeader' in the AWS Authorization."
            )


def _read(headers: dict[str, str], query: bytes) -> Signature:
    authorization = headers.get("authorization")
    if authorization is not None:
        algorithm, _, rest = authorization.partition(" ")
        if algorithm != ALGORITHM:
            raise SqsError(INVALID_SECURITY, f"Requests must be signed with {ALGORITHM}.")
        parts = _parts(rest)
        if b"X-Amz-Signature" in query and "X-Amz-Signature" in _parameters(query):
            raise _incomplete("The request is signed twice, in a header and in the URL")
        stamp = headers.get("x-amz-date") or _stamp_of_date(headers.get("date", ""))
        return _made(parts.get("Credential"), parts.get("SignedHeaders"), parts.get("Signature"), stamp, None)
    given = _parameters(query)
    if "X-Amz-Signature" not in given:
        if "Signature" in given or "X-Amz-Algorithm" in given:
            raise SqsError(INVALID_SECURITY, f"Requests must be signed with {ALGORITHM}.")
        raise SqsError(MISSING_TOKEN, "The request must contain a valid access key, and be signed with its secret.")
    if given.get("X-Amz-Algorithm") != ALGORITHM:
        raise SqsError(INVALID_SECURITY, f"Requests must be signed with {ALGORITHM}.")
    expires = given.get("X-Amz-Expires", "")
    # Python refuses to read numbers of thousands of digits.
    if not expires.isdecimal() or len(expires) > DIGITS_MAX or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise _incomplete("X-Amz-Expires must be a number of seconds up to a week")
    return _made(
        given.get("X-Amz-Credential"),
        given.get("X-Amz-SignedHeaders"),
        given["X-Amz-Signature"],
        given.get("X-Amz-Date", ""),
        int(expires),
    )


def _parts(authorization: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in authorization.split(","):
        name, _, value = part.strip().partition("=")
        if name in found:
            raise _incomplete(f"Authorization header has '{name[:100]}' twice")
        found[name] = value
    return found


def _parameters(query: bytes) -> dict[str, str]:
    """The parameters of a URL; of those that sign it, none may come twice."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in found and name.lower().startswith(_MUST_BE_SIGNED):
            raise _incomplete(f"'{name[:100]}' is given twice")
        found[name] = value
    return found


def _made(
    credential: str | None, signed_headers: str | None, signature: str | None, stamp: str, expires_s: int | None
) -> Signature:
    parts = (credential or "").split("/")
    if len(parts) != 5 or parts[4] != "aws4_request":
        raise _incomplete("Credential must have exactly 5 slash-delimited elements and end with aws4_request")
    if not signed_headers or "host" not in signed_headers.split(";"):
        raise _incomplete("SignedHeaders must name host")
    if len(set(signed_headers.split(";"))) != len(signed_headers.split(";")):
        raise _incomplete("SignedHeaders names a header twice")
    if not signature:
        raise _incomplete("Authorization header requires 'Signature' parameter")
    if not _STAMP.fullmatch(stamp):
        raise _incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header")
    access_key, day, region, service, _ = parts
    return Signature(access_key, day, region, service, tuple(signed_headers.split(";")), signature, stamp, expires_s)


def _incomplete(why: str) -> SqsError:
    return SqsError(INCOMPLETE_SIGNATURE, f"{why}.")


def _stamp_of_date(date: str) -> str:
    try:
        return datetime.strptime(date, "%a, %d %b %Y %H:%M:%S GMT").strftime("%Y%m%dT%H%M%SZ")
    except ValueError:
        return ""


def _check_time(signature: Signature, now_ms: int) -> None:
    try:
        signed_at = datetime.strptime(signature.stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _incomplete("X-Amz-Date is not a date") from None
    now = now_ms / 1000
    allowed = SKEW_S if signature.expires_s is None else signature.expires_s
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    if signed_at > now + SKEW_S:
        raise SqsError(
            SIGNATURE_DOES_NOT_MATCH, f"Signature not yet current: {signature.stamp} is still later than {shown}"
        )
    if signed_at + allowed < now:
        raise SqsError(SIGNATURE_DOES_NOT_MATCH, f"Signature expired: {signature.stamp} is now earlier than {shown}")


# -- the signature itself ---------------------------------------------------------------------------------------------


def _sign(scope: Scope, headers: dict[str, str], query: bytes, body: bytes, signature: Signature, secret: str) -> str:
    raw_path = scope.get("raw_path") or scope["path"].encode()
    path = quote(raw_path.decode("latin-1"), safe="/~", encoding="latin-1") or "/"
    pairs = sorted(
        (_escaped(name), _escaped(value))
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if signature.expires_s is None or name != "X-Amz-Signature"
    )
    canonical = "\n".join(
        (
            scope["method"],
            path,
            "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signature.signed_headers),
            "",
            ";".join(signature.signed_headers),
            hashlib.sha256(body).hexdigest(),
        )
    )
    reach = f"{signature.day}/{signature.region}/{signature.service}/aws4_request"
    digest = hashlib.sha256(canonical.encode("latin-1", "replace")).hexdigest()
    text = f"{ALGORITHM}\n{signature.stamp}\n{reach}\n{digest}"
    key = _key(secret, signature.day, signature.region, signature.service)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")


@cached_if_small(lambda *parts: sum(map(len, parts)))
def _key(secret: str, day: str, region: str, service: str) -> bytes:
    key = ("AWS4" + secret).encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key

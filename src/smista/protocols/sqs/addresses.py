"""Where a queue is: its URL and its ARN on the wire, its namespace and name in the broker.

    http://HOST/<account>/<name>                       arn:aws:sqs:<region>:<account>:<name>
    http://HOST/queue/<region>/<account>/<name>        outside the configured region
    http://sqs.<region>.HOST/<account>/<name>          AWS's own form, which is understood

The configured account in the configured region is the default namespace, so that its queues are those of the other
protocols. Every other account and region is a namespace of its own, `<account>/<region>`. A URL that names no region
is in the caller's.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from smista.caches import cached_if_small
from smista.protocols.sqs.errors import SqsError, invalid, no_such_queue
from smista.protocols.sqs.limits import Limits, SqsSettings
from smista.service.values import DEFAULT_NAMESPACE

_ACCOUNT = re.compile(r"[0-9]{12}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_REGION_OF_HOST = re.compile(r"(?:sqs\.([a-z]{2}[a-z0-9-]*-[0-9]+)\.|([a-z]{2}[a-z0-9-]*-[0-9]+)\.queue\.).+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
FIFO_SUFFIX = ".fifo"


class Address(NamedTuple):
    account: str | None
    """None where only a name was given: that of the caller."""
    name: str
    region: str | None = None
    """None where none was given: that of the caller."""


def is_region(text: str) -> bool:
    return _REGION.fullmatch(text) is not None


def is_account(text: str) -> bool:
    return _ACCOUNT.fullmatch(text) is not None


@cached_if_small(len)
def read_url(url: str) -> Address:
    """What a QueueUrl names: a URL, a path, or only the queue's name."""
    _, separator, rest = url.partition("://")
    host, _, path = rest.partition("/") if separator else ("", "", url.removeprefix("/"))
    if path and not separator and "/" not in path:
        return Address(None, path)
    found = read_path("/" + path)
    if found is None:
        # Whatever the host is, no queue has such a path.
        raise no_such_queue()
    return found._replace(name=unquote(found.name), region=found.region or region_of_host(host))


def read_path(path: str) -> Address | None:
    """The queue that the path of a request names; None where it names none."""
    parts = path.removesuffix("/").split("/")
    region = None
    if len(parts) == 5 and parts[1] == "queue" and is_region(parts[2]):
        region = parts[2]
        del parts[1:3]
    if len(parts) == 3 and not parts[0] and is_account(parts[1]) and parts[2]:
        return Address(parts[1], parts[2], region)
    return None


@cached_if_small(len)
def region_of_host(host: str) -> str | None:
    """The region in the name of a host, as AWS names its hosts."""
    found = _REGION_OF_HOST.fullmatch(host[:255])
    return None if found is None else found[1] or found[2]


def write_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


class Arn(NamedTuple):
    region: str
    account: str
    name: str


def read_arn(text: object) -> Arn | None:
    """The parts of a queue's ARN; None where it is none."""
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not all(parts[3:]):
        return None
    return Arn(parts[3], parts[4], parts[5])


def namespace_of(account: str, region: str, settings: SqsSettings) -> str:
    if account == settings.account and region == settings.region:
        return DEFAULT_NAMESPACE
    return f"{account}/{region}"


def check_name(name: str, limits: Limits) -> None:
    """Raise unless a queue may be created under this name."""
    is_good = 1 <= len(name) <= limits.name_length and (
        (limits.any_character and name.isprintable() and "/" not in name) or _NAME.fullmatch(name) is not None
    )
    if not is_good:
        raise bad_name()


def bad_name() -> SqsError:
    return invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")

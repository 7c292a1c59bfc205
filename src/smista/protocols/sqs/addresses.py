"""Where a queue is: its URL and its ARN on the wire, its namespace and name in the broker.

    http://HOST/<account>/<name>     arn:aws:sqs:<region>:<account>:<name>

The configured account in the configured region is the default namespace, so that its queues are those of the other
doors. Every other account and region is a namespace of its own, `<account>/<region>`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from smista.core.caches import cached_if_small
from smista.core.state import DEFAULT_NAMESPACE
from smista.protocols.sqs.errors import SqsError, invalid, no_such_queue
from smista.protocols.sqs.limits import Limits, SqsSettings

_ACCOUNT = re.compile(r"[0-9]{12}")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
FIFO_SUFFIX = ".fifo"


class Address(NamedTuple):
    account: str | None
    """None where only a name was given: the caller's."""
    name: str


def is_account(text: str) -> bool:
    return _ACCOUNT.fullmatch(text) is not None


@cached_if_small(len)
def read_url(url: str) -> Address:
    """What a QueueUrl names: a URL, a path, or only the queue's name."""
    _, separator, rest = url.partition("://")
    path = rest.partition("/")[2].removesuffix("/") if separator else url.removeprefix("/")
    if path and not separator and "/" not in path:
        return Address(None, path)
    account, separator, name = path.partition("/")
    if not separator or not is_account(account) or not name or "/" in name:
        # Whatever its host: of our queues it is none.
        raise no_such_queue()
    return Address(account, unquote(name))


def read_path(path: str) -> Address | None:
    """What the path of a request names, if it is a queue's."""
    parts = path.removesuffix("/").split("/")
    if len(parts) == 3 and not parts[0] and is_account(parts[1]) and parts[2]:
        return Address(parts[1], parts[2])
    return None


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

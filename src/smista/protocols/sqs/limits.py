"""The settings of SQS, and its limits: those of AWS, or with `relaxed` the broker's own."""

from __future__ import annotations

import msgspec

MIB = 1 << 20
_FOREVER_S = 1 << 40
_OTHER_FIELDS_BYTES = 256 << 10
"""Of a request with as many messages as fit into it: all that does not count as their bytes."""
_FORM_BYTES_PER_BYTE = 4
"""%2F for each byte of a text, and for each four letters of base64 that stand for three bytes."""
_JSON_BYTES_PER_BYTE = 6
"""As some encoders of JSON write <, \\u003c."""
_MEMBERS_MIN = 10_000
_MEMBERS_PER_ENTRY = 100
"""More than an entry of a batch has with all its fields, ten attributes and all of theirs."""


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True):
    account: str = "000000000000"
    """The account whose queues are those of the other protocols, in `region`."""
    region: str = "us-east-1"
    region_urls: bool = False
    """Name the region in every queue's URL, also where it is this one."""
    access_keys: dict[str, str] = {}
    """Secret by access key. Requests must be signed with one of them as soon as there are any."""
    strict_timing: bool = False
    """Keep AWS's 60 seconds after DeleteQueue and PurgeQueue."""
    relaxed: bool = False
    """Lift AWS's limits on sizes, counts, times and characters."""
    requests_per_second: int | None = None
    """How many requests an account may make, on average; None for as many as it likes."""
    actions_off: frozenset[str] = frozenset()
    """Actions that are answered with UnsupportedOperation, by their names."""
    request_bytes_max: int = 16 * MIB
    """Of any request; see also `Limits.request_bytes_max`."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What AWS allows; `RELAXED` is with `relaxed`."""

    message_bytes: int = MIB
    batch_entries: int = 10
    received: int = 10
    visibility_s: int = 43_200
    delay_s: int = 900
    retention_s: int = 1_209_600
    retention_s_min: int = 60
    message_bytes_min: int = 1024
    in_flight: int = 120_000
    message_attributes: int = 10
    tags: int = 50
    receive_count: int = 1000
    name_length: int = 80
    policy_bytes: int = 8192
    policy_statements: int = 20
    policy_principals: int = 50
    policy_conditions: int = 10
    statement_actions: int = 7
    any_character: bool = False
    """Allow in bodies what XML cannot hold, and in names and ids all printable characters."""

    def request_bytes_max(self, *, is_form: bool) -> int:
        """How long a request can get that keeps to all other limits, however its texts are escaped."""
        escaped = _FORM_BYTES_PER_BYTE if is_form else _JSON_BYTES_PER_BYTE
        return self.message_bytes * escaped + _OTHER_FIELDS_BYTES

    @property
    def request_members_max(self) -> int:
        """Of all lists and maps of a request in JSON together: as many as the longest batch has if its entries
        are as full as AWS allows."""
        return max(_MEMBERS_MIN, self.batch_entries * _MEMBERS_PER_ENTRY)


STRICT = Limits()
RELAXED = Limits(
    message_bytes=1 << 31,
    batch_entries=1000,
    received=1000,
    visibility_s=_FOREVER_S,
    delay_s=_FOREVER_S,
    retention_s=_FOREVER_S,
    retention_s_min=1,
    message_bytes_min=1,
    in_flight=1 << 62,
    message_attributes=1000,
    tags=1000,
    receive_count=1 << 31,
    name_length=255,
    policy_bytes=1 << 31,
    policy_statements=1 << 31,
    policy_principals=1 << 31,
    policy_conditions=1 << 31,
    statement_actions=1 << 31,
    any_character=True,
)

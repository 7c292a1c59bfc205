"""Queue attributes, as SQS has them, and queue settings, as the broker has them.

Some attributes are settings of ours under another name and in seconds: VisibilityTimeout is `lease_ms`, and so on.
The rest (policies, the default wait of a receive, what only AWS can do) is stored in the annotations of the queue,
under `sqs.` and the attribute's name; tags under `sqs.tag:` and their key.

One table per direction: `_TAKE` puts a given attribute into the draft of a queue, `_SHOW` reads it out of a queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from smista.protocols.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    OVER_LIMIT,
    Kind,
    SqsError,
)
from smista.protocols.sqs.limits import MIB, Limits
from smista.protocols.sqs.policy import excess
from smista.service.dead_letter_places import named_target
from smista.service.values import Backoff, DeadLetterMode, DeduplicationScope, QueueSettings

PREFIX = "sqs."
TAG_PREFIX = "sqs.tag:"
CREATED = "sqs.created"
MODIFIED = "sqs.modified"

RETENTION_S = 345_600
REUSE_PERIOD_S = 300
DEFAULT = QueueSettings(
    lease_ms=30_000,
    max_retries=None,
    retry_backoff=Backoff.NONE,
    retention_ms=RETENTION_S * 1000,
    fair=True,
)
"""A queue that is created without any attributes."""

COUNTS = {
    "ApproximateNumberOfMessages": "ready",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "scheduled",
}
READ_ONLY = frozenset((*COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"))
FIFO_ONLY = frozenset(("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"))
_DIGITS = re.compile(r"[0-9]{1,15}")
_UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
"""Raised for text that is not JSON, or is nested too deeply."""


class Draft:
    """A queue's settings while attributes are being put into them."""

    def __init__(
        self,
        settings: QueueSettings,
        limits: Limits,
        find_dead_letter_queue: Callable[[str], str],
        *,
        over_limit: Kind = OVER_LIMIT,
    ) -> None:
        self.fields: dict[str, object] = {}
        self.settings = settings
        self.limits = limits
        self.annotations = dict(settings.annotations)
        self.find_dead_letter_queue = find_dead_letter_queue
        """From the text of a RedrivePolicy's ARN to the name of a queue; raises where it may not be used."""
        self.over_limit = over_limit
        """The error for a policy that is larger than AWS's quotas."""

    def annotate(self, name: str, value: str) -> None:
        if value:
            self.annotations[PREFIX + name] = value
        else:
            self.annotations.pop(PREFIX + name, None)

    def result(self) -> QueueSettings:
        fields = {**self.fields, "annotations": tuple(sorted(self.annotations.items()))}
        return msgspec.structs.replace(self.settings, **fields)


def unknown(name: str) -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def invalid_attribute(name: str, detail: str = "") -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.{detail}")


def take(draft: Draft, given: Mapping[str, str], *, is_fifo: bool) -> None:
    """Put attributes into a draft, or raise. Checked in the order that AWS checks in, whatever the order they are given
    in: first the names, then each value for itself, then what one value asks of another."""
    for name in given:
        if name not in _TAKE or (name in FIFO_ONLY and not is_fifo):
            raise unknown(name)
    for name, value in given.items():
        _TAKE[name](draft, name, value)
    draft_scope = draft.fields.get("dedup_scope", draft.settings.dedup_scope)
    limit = draft.annotations.get(PREFIX + "FifoThroughputLimit")
    if limit == "perMessageGroupId" and draft_scope is not DeduplicationScope.GROUP:
        raise invalid_attribute(
            "FifoThroughputLimit", " Reason: perMessageGroupId needs DeduplicationScope messageGroup."
        )
    if PREFIX + "KmsMasterKeyId" in draft.annotations:
        if is_true(given.get("SqsManagedSseEnabled", "")):
            raise SqsError(
                INVALID_ATTRIBUTE_NAME,
                "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or "
                "SQS SSE.",
            )
        draft.annotate("SqsManagedSseEnabled", "false")


def _seconds(field: str, least: int, most: Callable[[Limits], int]) -> Callable[[Draft, str, str], None]:
    def taker(draft: Draft, name: str, value: str) -> None:
        number = _number(name, value)
        lowest = draft.limits.retention_s_min if field == "retention_ms" else least
        if not lowest <= number <= most(draft.limits):
            raise invalid_attribute(name)
        draft.fields[field] = number * 1000

    return taker


def _number(name: str, value: str) -> int:
    if not _DIGITS.fullmatch(value):
        raise invalid_attribute(name)
    return int(value)


def _take_size(draft: Draft, name: str, value: str) -> None:
    number = _number(name, value)
    if not draft.limits.message_bytes_min <= number <= draft.limits.message_bytes:
        raise invalid_attribute(name)
    draft.fields["body_bytes_max"] = None if number == MIB else number


def _take_wait(draft: Draft, name: str, value: str) -> None:
    if _number(name, value) > 20:
        raise invalid_attribute(name)
    draft.annotate(name, "" if int(value) == 0 else str(int(value)))


def _take_reuse_period(draft: Draft, name: str, value: str) -> None:
    number = _number(name, value)
    if not 60 <= number <= 86_400:
        raise invalid_attribute(name)
    draft.annotate(name, "" if number == REUSE_PERIOD_S else str(number))


def _take_policy(draft: Draft, name: str, value: str) -> None:
    reason = excess(_json_object(name, value), value, draft.limits) if value else None
    if reason is not None:
        raise SqsError(draft.over_limit, reason)
    draft.annotate(name, value)


def _take_text(draft: Draft, name: str, value: str) -> None:
    draft.annotate(name, value)


def _take_flag(draft: Draft, name: str, value: str) -> None:
    draft.annotate(name, str(_flag(name, value)).lower())


def is_true(value: str) -> bool:
    """Python's clients write True, others TRUE."""
    return value.lower() == "true"


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise invalid_attribute(name)
    return is_true(value)


def _take_fifo(draft: Draft, name: str, value: str) -> None:
    if not _flag(name, value):
        # A standard queue does not have this attribute, so this is a FIFO queue.
        raise invalid_attribute(name, " Reason: Modifying queue type is not supported.")
    if not draft.settings.ordered:
        draft.fields.update(ordered=True, group_turns=True, fair=False)


def _take_content_based(draft: Draft, name: str, value: str) -> None:
    draft.fields["dedup_by_body"] = _flag(name, value)


_SCOPES = {"queue": DeduplicationScope.QUEUE, "messageGroup": DeduplicationScope.GROUP}
_SCOPE_NAMES = {scope: name for name, scope in _SCOPES.items()}


def _take_scope(draft: Draft, name: str, value: str) -> None:
    if value not in _SCOPES:
        raise invalid_attribute(name)
    draft.fields["dedup_scope"] = _SCOPES[value]


def _take_throughput(draft: Draft, name: str, value: str) -> None:
    if value not in ("perQueue", "perMessageGroupId"):
        raise invalid_attribute(name)
    draft.annotate(name, value if value != "perQueue" else "")


def _json_object(name: str, value: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(value, type=dict[str, object])
    except _UNREADABLE:
        raise invalid_attribute(name) from None


# -- dead letters -----------------------------------------------------------------------------------------------------


def policy_error(value: str, reason: str) -> SqsError:
    return SqsError(
        INVALID_ATTRIBUTE_VALUE, f"Value {value[:1000]} for parameter RedrivePolicy is invalid. Reason: {reason}"
    )


def _take_redrive_policy(draft: Draft, name: str, value: str) -> None:
    if not value:
        draft.fields.update(max_retries=None, dead_letter_queue=None)
        return
    try:
        policy = msgspec.json.decode(value, type=dict[str, object])
    except _UNREADABLE:
        raise policy_error(value, "Redrive policy is not a valid JSON map.") from None
    target, count = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    for parameter, part in (("maxReceiveCount", count), ("deadLetterTargetArn", target)):
        if part is None:
            raise policy_error(value, f"Redrive policy does not contain mandatory attribute: {parameter}.")
    if len(policy) > 2:
        raise policy_error(value, "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].")
    digits = str(count) if not isinstance(count, bool) else ""
    if not _DIGITS.fullmatch(digits) or not 1 <= int(digits) <= draft.limits.receive_count:
        raise policy_error(value, "Invalid value for maxReceiveCount: must be between 1 and 1000.")
    if not isinstance(target, str):
        raise policy_error(value, "deadLetterTargetArn must be a string.")
    draft.fields["dead_letter"] = DeadLetterMode.MOVE
    draft.fields["own_dead_letters"] = True
    draft.fields["dead_letter_exchange"] = draft.fields["dead_letter_routing_key"] = None
    draft.fields["dead_letter_queue"] = draft.find_dead_letter_queue(value)
    draft.fields["max_retries"] = int(digits) - 1


def _take_allow_policy(draft: Draft, name: str, value: str) -> None:
    if value:
        read_allow_policy(value)
    draft.annotate(name, value)


class AllowPolicy(msgspec.Struct, frozen=True, rename="camel"):
    redrive_permission: str = "allowAll"
    source_queue_arns: list[str] = []

    def allows(self, arn: str) -> bool:
        return self.redrive_permission == "allowAll" or (
            self.redrive_permission == "byQueue" and arn in self.source_queue_arns
        )


def read_allow_policy(value: str) -> AllowPolicy:
    name = "RedriveAllowPolicy"
    try:
        policy = msgspec.json.decode(value, type=AllowPolicy)
    except _UNREADABLE:
        raise invalid_attribute(name) from None
    if policy.redrive_permission not in ("allowAll", "denyAll", "byQueue"):
        raise invalid_attribute(name)
    if (policy.redrive_permission == "byQueue") != bool(policy.source_queue_arns) or len(policy.source_queue_arns) > 10:
        raise invalid_attribute(name)
    return policy


def dead_letter_target(name: str, settings: QueueSettings) -> str | None:
    """The queue that a queue's dead letters go to after some receives; None where they do not."""
    if settings.max_retries is None or settings.dead_letter is not DeadLetterMode.MOVE:
        return None
    return named_target(name, settings)


_TAKE: dict[str, Callable[[Draft, str, str], None]] = {
    "VisibilityTimeout": _seconds("lease_ms", 0, lambda limits: limits.visibility_s),
    "DelaySeconds": _seconds("delay_ms", 0, lambda limits: limits.delay_s),
    "MessageRetentionPeriod": _seconds("retention_ms", 60, lambda limits: limits.retention_s),
    "MaximumMessageSize": _take_size,
    "ReceiveMessageWaitTimeSeconds": _take_wait,
    "Policy": _take_policy,
    "RedrivePolicy": _take_redrive_policy,
    "RedriveAllowPolicy": _take_allow_policy,
    "KmsMasterKeyId": _take_text,
    "KmsDataKeyReusePeriodSeconds": _take_reuse_period,
    "SqsManagedSseEnabled": _take_flag,
    "FifoQueue": _take_fifo,
    "ContentBasedDeduplication": _take_content_based,
    "DeduplicationScope": _take_scope,
    "FifoThroughputLimit": _take_throughput,
}
NAMES = frozenset((*_TAKE, *READ_ONLY))


# -- showing ----------------------------------------------------------------------------------------------------------


class QueueView(msgspec.Struct, frozen=True):
    """A queue whose attributes are shown."""

    name: str
    settings: QueueSettings
    annotations: dict[str, str]
    arn_of: Callable[[str], str]
    """From a queue's name to its ARN, in the account and region of this one."""

    def annotation(self, name: str) -> str | None:
        return self.annotations.get(PREFIX + name)


def show(queue: QueueView, name: str) -> str | None:
    """The value of an attribute by the settings of the queue; None where it has none."""
    shower = _SHOW.get(name)
    if shower is not None:
        return shower(queue)
    if name in FIFO_ONLY and not queue.settings.ordered:
        return None
    return queue.annotation(name)


def lease_s(settings: QueueSettings) -> int:
    """Over other protocols a lease may have no end; here that is the longest there is."""
    return -(-settings.lease_ms // 1000)


def _show_policy(queue: QueueView) -> str | None:
    target = dead_letter_target(queue.name, queue.settings)
    if target is None or queue.settings.max_retries is None:
        return None
    policy = {"deadLetterTargetArn": queue.arn_of(target), "maxReceiveCount": queue.settings.max_retries + 1}
    return msgspec.json.encode(policy).decode()


def _show_retention(queue: QueueView) -> str:
    retention_ms = queue.settings.retention_ms
    return str(1_209_600 if retention_ms is None else max(1, retention_ms // 1000))


def _flag_of_fifo(show_flag: Callable[[QueueSettings], str]) -> Callable[[QueueView], str | None]:
    return lambda queue: show_flag(queue.settings) if queue.settings.ordered else None


_SHOW: dict[str, Callable[[QueueView], str | None]] = {
    "VisibilityTimeout": lambda queue: str(lease_s(queue.settings)),
    "DelaySeconds": lambda queue: str(-(-queue.settings.delay_ms // 1000)),
    "MessageRetentionPeriod": _show_retention,
    "MaximumMessageSize": lambda queue: str(queue.settings.body_bytes_max or MIB),
    "ReceiveMessageWaitTimeSeconds": lambda queue: queue.annotation("ReceiveMessageWaitTimeSeconds") or "0",
    "SqsManagedSseEnabled": lambda queue: queue.annotation("SqsManagedSseEnabled") or "true",
    "RedrivePolicy": _show_policy,
    "FifoQueue": lambda queue: "true" if queue.settings.ordered else None,
    "ContentBasedDeduplication": _flag_of_fifo(lambda settings: str(settings.dedup_by_body).lower()),
    "DeduplicationScope": _flag_of_fifo(lambda settings: _SCOPE_NAMES[settings.dedup_scope]),
    "FifoThroughputLimit": lambda queue: (
        (queue.annotation("FifoThroughputLimit") or "perQueue") if queue.settings.ordered else None
    ),
    "QueueArn": lambda queue: queue.arn_of(queue.name),
    "CreatedTimestamp": lambda queue: queue.annotations.get(CREATED),
    "LastModifiedTimestamp": lambda queue: queue.annotations.get(MODIFIED),
}


def stamp(settings: QueueSettings, now_ms: int, *, is_new: bool = False) -> QueueSettings:
    """The settings with the time of their change noted."""
    annotations = dict(settings.annotations)
    annotations[MODIFIED] = str(now_ms // 1000)
    if is_new:
        annotations[CREATED] = str(now_ms // 1000)
    return msgspec.structs.replace(settings, annotations=tuple(sorted(annotations.items())))


# -- tags -------------------------------------------------------------------------------------------------------------


def tags(settings: QueueSettings) -> dict[str, str]:
    return {name.removeprefix(TAG_PREFIX): value for name, value in settings.annotations if name.startswith(TAG_PREFIX)}


def with_tags(settings: QueueSettings, tags: Mapping[str, str]) -> QueueSettings:
    """The settings with these tags and no others."""
    pairs = [pair for pair in settings.annotations if not pair[0].startswith(TAG_PREFIX)]
    pairs += [(TAG_PREFIX + key, value) for key, value in tags.items()]
    return msgspec.structs.replace(settings, annotations=tuple(sorted(pairs)))

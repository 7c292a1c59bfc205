"""From what a sender gives to a publication: the checks that SendMessage and each entry of a batch share."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from smista.protocols.sqs import message_attributes
from smista.protocols.sqs.call import Target
from smista.protocols.sqs.errors import INVALID_MESSAGE_CONTENTS, SqsError, invalid, invalid_value, missing
from smista.protocols.sqs.limits import MIB, Limits
from smista.protocols.sqs.message_attributes import GivenAttribute, StoredAttributes
from smista.service.values import PLAIN, Envelope, Publication

_ID = re.compile(r"[!-~]{1,128}")


class MessageParameters(msgspec.Struct, rename="pascal", kw_only=True):
    """What SendMessage and an entry of SendMessageBatch have in common."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, GivenAttribute] | None = None
    message_system_attributes: dict[str, GivenAttribute] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class Prepared(NamedTuple):
    """A message that may be published, and the digests for its sender."""

    publication: Publication
    size: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


def prepare(
    given: MessageParameters,
    target: Target,
    limits: Limits,
    *,
    trace_header: str | None = None,
    is_batch: bool = False,
) -> Prepared:
    """Check a message for a queue, or raise what is wrong with it. `trace_header` is that of the request."""
    text = given.message_body
    if not text:
        raise missing("MessageBody")
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise _invalid_characters() from None
    if not limits.any_character and not message_attributes.is_xml_text(body):
        raise _invalid_characters()
    size = len(body)
    stored = md5_of_attributes = md5_of_system_attributes = None
    if given.message_attributes or given.message_system_attributes:
        attributes, attribute_bytes = message_attributes.check(given.message_attributes or {}, limits)
        own_header = message_attributes.check_trace_header(given.message_system_attributes or {})
        size += attribute_bytes
        if attributes:
            md5_of_attributes = message_attributes.digest(attributes)
        if own_header is not None:
            md5_of_system_attributes = message_attributes.trace_digest(own_header)
        stored = StoredAttributes(attributes, own_header or trace_header)
    elif trace_header is not None:
        stored = StoredAttributes(trace_header=trace_header)
    size_max = target.settings.body_bytes_max or min(MIB, limits.message_bytes)
    if size > size_max and not (limits.any_character and target.settings.body_bytes_max is None):
        raise invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {size_max} bytes.")
    if target.settings.ordered:
        envelope, delay_ms = _fifo(given, target, body, stored, is_batch=is_batch)
    else:
        envelope, delay_ms = _standard(given, stored, limits)
    return Prepared(
        Publication(body, envelope, None, delay_ms),
        size,
        message_attributes.md5(body),
        md5_of_attributes,
        md5_of_system_attributes,
    )


def _standard(given: MessageParameters, stored: StoredAttributes | None, limits: Limits) -> tuple[Envelope, int | None]:
    group, delay_s = given.message_group_id, given.delay_seconds
    if given.message_deduplication_id is not None:
        raise _wrong_type(given.message_deduplication_id, "MessageDeduplicationId")
    if delay_s is not None and not 0 <= delay_s <= limits.delay_s:
        raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {limits.delay_s}.")
    if group is not None:
        _check_id(group, "MessageGroupId")
    elif stored is None:
        return PLAIN, None if delay_s is None else delay_s * 1000
    properties = b"" if stored is None else message_attributes.write(stored)
    return Envelope(properties, group=group), None if delay_s is None else delay_s * 1000


def _fifo(
    given: MessageParameters, target: Target, body: bytes, stored: StoredAttributes | None, *, is_batch: bool
) -> tuple[Envelope, int | None]:
    check_ids(given, target, is_batch=is_batch)
    group, deduplication_id = given.message_group_id or "", given.message_deduplication_id
    _check_id(group, "MessageGroupId")
    if given.delay_seconds:
        raise _wrong_type(given.delay_seconds, "DelaySeconds")
    if deduplication_id is not None:
        _check_id(deduplication_id, "MessageDeduplicationId")
    else:
        # As an id, so that a message to which its sender gives the same id is a duplicate.
        deduplication_id = hashlib.sha256(body).hexdigest()
    properties = b"" if stored is None else message_attributes.write(stored)
    return Envelope(properties, group=group, deduplication_id=deduplication_id), None


def check_ids(given: MessageParameters, target: Target, *, is_batch: bool) -> None:
    """Raise where a message for a FIFO queue names no group, or nothing by which to know it again. In a batch that is
    wrong with the request, not with the entry."""
    if not target.settings.ordered:
        return
    if not given.message_group_id:
        if is_batch:
            raise invalid("The request must contain the parameter MessageGroupId.")
        raise missing("MessageGroupId")
    if given.message_deduplication_id is None and not target.settings.dedup_by_body:
        raise invalid(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly"
        )


def _check_id(value: str, parameter: str) -> None:
    if _ID.fullmatch(value) is None:
        raise invalid_value(
            value[:200],
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def _wrong_type(value: object, parameter: str) -> SqsError:
    return invalid_value(value, parameter, "The request include parameter that is not valid for this queue type.")


def _invalid_characters() -> SqsError:
    return SqsError(
        INVALID_MESSAGE_CONTENTS,
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
        "#x10000 to #x10FFFF",
    )


def sequence_number(number: int) -> str:
    """20 digits, as AWS has them, growing with every message."""
    return f"{number:020d}"

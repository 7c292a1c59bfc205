"""ReceiveMessage: up to ten messages under a visibility timeout; waits for the first if asked to."""

from __future__ import annotations

import asyncio
import base64

import msgspec

from smista.errors import BrokerClosed
from smista.protocols.sqs import attributes, message_attributes, receipts
from smista.protocols.sqs.actions.base import Answer, QueueParameters, check_range
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.dead_letter_policy import received_before
from smista.protocols.sqs.errors import INVALID_ATTRIBUTE_NAME, OVER_LIMIT, SqsError, invalid_value
from smista.protocols.sqs.message_attributes import ENCODING_HEADER, AttributeValue
from smista.protocols.sqs.sending import sequence_number
from smista.service import queue_annotations
from smista.service.values import FOREVER_MS, TICK_MS, Delivery

AT_ONCE_BYTES = 64 << 10
"""Of messages that are shown in one turn of the loop, or one message: to hash 1 MiB takes 2 ms."""
WAIT = attributes.PREFIX + "ReceiveMessageWaitTimeSeconds"
WAIT_S_MAX = 20
SYSTEM_ATTRIBUTES = frozenset(
    (
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    )
)


class Received(msgspec.Struct, rename="pascal", omit_defaults=True, gc=False):
    message_id: str
    receipt_handle: str
    md5_of_body: str = msgspec.field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] | None = None
    md5_of_attributes: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    message_attributes: dict[str, AttributeValue] | None = None


class ReceiveAnswer(Answer, rename="pascal", omit_defaults=True):
    messages: list[Received] = msgspec.field(default_factory=list)


EMPTY = ReceiveAnswer()


class ReceiveMessage(QueueParameters, rename="pascal", kw_only=True):
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        call.check_key(target)
        limit, lease_ms, wait_ms = self._checked(call, target)
        system_names = self._system_names()
        attempt = self._attempt(target)
        deliveries = await self._again(call, target, attempt, lease_ms) if attempt is not None else None
        if deliveries is None:
            await self._check_in_flight(call, target, wait_ms)
            deliveries = await self._receive(call, target, limit, lease_ms, wait_ms)
            if attempt is not None and deliveries:
                call.memory.attempts.keep(attempt, [one.receipt for one in deliveries], call.service.now_ms())
            if deliveries and lease_ms == 0:
                # Until the broker has seen that the lease is over, so that the next receive finds the message again.
                await asyncio.sleep(2 * TICK_MS / 1000)
        if not deliveries:
            return EMPTY
        answer = ReceiveAnswer([])
        some_bytes = 0
        for one in deliveries:
            answer.messages.append(_received(call, target, one, system_names, self.message_attribute_names))
            some_bytes += len(one.body)
            if some_bytes >= AT_ONCE_BYTES:
                some_bytes = 0
                await call.service.fair_turns.turn()
        return answer

    def _checked(self, call: Call, target: Target) -> tuple[int, int, int]:
        limits = call.limits
        limit = 1 if self.max_number_of_messages is None else self.max_number_of_messages
        if not 1 <= limit <= limits.received:
            raise invalid_value(limit, "MaxNumberOfMessages", f"Must be between 1 and {limits.received}, if provided.")
        lease_ms = target.settings.lease_ms
        if self.visibility_timeout is not None:
            check_range(
                self.visibility_timeout,
                "VisibilityTimeout",
                0,
                limits.visibility_s,
                f"Must be >= 0 and <= {limits.visibility_s}, if provided.",
            )
            lease_ms = self.visibility_timeout * 1000
        elif lease_ms >= FOREVER_MS:
            # Declared over a protocol whose consumers hold messages as long as they are connected; none is, here.
            lease_ms = 30_000
        wait_s = self.wait_time_seconds
        if wait_s is None:
            wait_s = queue_annotations.number(target.settings, WAIT, 0, WAIT_S_MAX) or 0
        check_range(wait_s, "WaitTimeSeconds", 0, WAIT_S_MAX, f"Must be >= 0 and <= {WAIT_S_MAX}, if provided.")
        return min(limit, target.settings.max_prefetch), lease_ms, wait_s * 1000

    def _system_names(self) -> frozenset[str]:
        names = [*(self.attribute_names or ()), *(self.message_system_attribute_names or ())]
        if not names:
            return frozenset()
        if "All" in names:
            return SYSTEM_ATTRIBUTES
        for name in names:
            if name not in SYSTEM_ATTRIBUTES and name not in attributes.NAMES:
                raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        return frozenset(names)

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _check_in_flight(self, call: Call, target: Target, wait_ms: int) -> None:
        # To count all messages is cheap, to count those in flight is not.
        if await target.session.message_count(target.name) < call.limits.in_flight:
            return
        stats = await target.session.stats(target.name)
        if stats.in_flight >= call.limits.in_flight:
            raise SqsError(
                OVER_LIMIT,
                f"Too many messages are in flight: {stats.in_flight}. Delete some before you receive more.",
            )

    async def _receive(self, call: Call, target: Target, limit: int, lease_ms: int, wait_ms: int) -> list[Delivery]:
        session, is_fifo = target.session, target.settings.ordered
        deliveries = await session.receive(target.name, limit, lease_ms=lease_ms, several_per_group=is_fifo)
        if deliveries or not wait_ms:
            return deliveries

        def give_back(late: list[Delivery]) -> None:
            session.give_back([delivery.receipt for delivery in late])

        waiting = session.receive(target.name, limit, wait_ms=wait_ms, lease_ms=lease_ms, several_per_group=is_fifo)
        try:
            return await call.wait(waiting, give_back)
        except BrokerClosed:
            # The broker is stopping: the poll ends early.
            return []

    def _attempt(self, target: Target) -> tuple[str, str, str] | None:
        id = self.receive_request_attempt_id
        if id is None or not target.settings.ordered:
            return None
        if not 1 <= len(id) <= 128 or not id.isascii() or not id.isprintable() or " " in id:
            raise invalid_value(
                id[:200],
                "ReceiveRequestAttemptId",
                "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
            )
        return target.namespace, target.name, id

    async def _again(
        self, call: Call, target: Target, attempt: tuple[str, str, str], lease_ms: int
    ) -> list[Delivery] | None:
        """The messages of the same attempt, if all of them are still held as they were."""
        attempts = call.memory.attempts
        receipts = attempts.find(attempt, call.service.now_ms())
        if receipts is None:
            return None
        outcomes = await target.session.extend(receipts, lease_ms)
        if not any(outcome is not None for outcome in outcomes):
            deliveries = await target.session.held(receipts)
            if len(deliveries) == len(receipts):
                return deliveries
        attempts.forget(attempt)
        return None


# -- showing ----------------------------------------------------------------------------------------------------------


def _received(
    call: Call, target: Target, delivery: Delivery, system_names: frozenset[str], names: list[str] | None
) -> Received:
    data = delivery.body
    stored = message_attributes.read(delivery.envelope.properties)
    shown = stored.attributes
    try:
        body = data.decode()
        is_text = message_attributes.is_xml_text(data) or call.limits.any_character
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        # Of another protocol. SQS has text only, so an attribute says that this is base64.
        data = base64.b64encode(data)
        body = data.decode()
        shown = {**shown, ENCODING_HEADER: ("String", "base64")}
    received = Received(delivery.id, receipts.write(delivery), message_attributes.md5(data), body)
    if system_names:
        received.attributes = _system_attributes(call, target, delivery, stored.trace_header, system_names)
    if names:
        chosen = message_attributes.chosen(shown, names)
        if chosen:
            received.message_attributes = message_attributes.on_the_wire(chosen)
            received.md5_of_attributes = message_attributes.digest(chosen)
    return received


def _system_attributes(
    call: Call, target: Target, delivery: Delivery, trace_header: str | None, names: frozenset[str]
) -> dict[str, str]:
    envelope = delivery.envelope
    first_at_ms = delivery.failures[0].delivered_at_ms if delivery.failures else delivery.delivered_at_ms
    shown: dict[str, str | None] = {
        "SenderId": target.account,
        "SentTimestamp": str(delivery.created_at_ms),
        "ApproximateReceiveCount": str(delivery.delivery_count + received_before(target, delivery.deaths)),
        "ApproximateFirstReceiveTimestamp": str(first_at_ms),
        "MessageGroupId": envelope.group,
        "AWSTraceHeader": trace_header,
    }
    if target.settings.ordered:
        shown["SequenceNumber"] = sequence_number(delivery.number)
        shown["MessageDeduplicationId"] = envelope.deduplication_id
    if delivery.deaths and delivery.deaths[-1].queue != target.name:
        shown["DeadLetterQueueSourceArn"] = target.arn(delivery.deaths[-1].queue)
    return {name: value for name, value in shown.items() if value is not None and name in names}

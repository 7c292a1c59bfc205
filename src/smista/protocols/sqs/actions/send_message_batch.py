"""SendMessageBatch: up to ten messages, each with an outcome of its own."""

from __future__ import annotations

import msgspec

from smista.errors import BrokerError
from smista.protocols.sqs.actions.base import Answer, Failed, QueueParameters, check_entries, failed
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import BATCH_TOO_LONG, SqsError
from smista.protocols.sqs.limits import MIB
from smista.protocols.sqs.sending import MessageParameters, Prepared, check_ids, prepare, sequence_number

PREPARED_AT_ONCE = 50
"""Entries of a batch in one turn of the loop; only with `relaxed` may there be more."""


class SendEntry(MessageParameters, rename="pascal", kw_only=True):
    id: str | None = None


class Sent(msgspec.Struct, rename="pascal", omit_defaults=True, gc=False):
    id: str
    message_id: str
    md5_of_body: str = msgspec.field(name="MD5OfMessageBody")
    md5_of_attributes: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    md5_of_system_attributes: str | None = msgspec.field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class SendBatchAnswer(Answer, rename="pascal", omit_defaults=True):
    successful: list[Sent] = msgspec.field(default_factory=list)
    failed: list[Failed] = msgspec.field(default_factory=list)


class SendMessageBatch(QueueParameters, rename="pascal", kw_only=True):
    entries: list[SendEntry] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        call.check_key(target)
        entries = check_entries(self.entries, call.limits, "SendMessageBatchRequestEntry")
        self._check_size(call)
        for _, entry in entries:
            check_ids(entry, target, is_batch=True)
        prepared: list[tuple[str, Prepared]] = []
        answer = SendBatchAnswer([], [])
        async for id, entry in call.service.fair_turns.in_turns(entries, PREPARED_AT_ONCE):
            try:
                one = prepare(entry, target, call.limits, trace_header=call.trace_header, is_batch=True)
                prepared.append((id, one))
            except SqsError as error:
                answer.failed.append(failed(id, error))
        if not prepared:
            return answer
        results = await target.session.publish(target.name, [one.publication for _, one in prepared])
        is_fifo = target.settings.ordered
        for (id, one), published in zip(prepared, results, strict=True):
            if isinstance(published, BrokerError):
                answer.failed.append(failed(id, published))
                continue
            answer.successful.append(
                Sent(
                    id,
                    published.id,
                    one.md5_of_body,
                    one.md5_of_attributes,
                    one.md5_of_system_attributes,
                    sequence_number(published.number) if is_fifo else None,
                )
            )
        return answer

    def _check_size(self, call: Call) -> None:
        """All bodies and attributes together, whatever else is wrong with them."""
        if call.limits.any_character:
            return
        size = 0
        for entry in self.entries or ():
            size += len((entry.message_body or "").encode("utf-8", "replace"))
            for name, value in (entry.message_attributes or {}).items():
                size += (
                    len(name.encode("utf-8", "replace")) + len(value.data_type or "") + len(value.binary_value or b"")
                )
                size += len((value.string_value or "").encode("utf-8", "replace"))
        if size > MIB:
            raise SqsError(
                BATCH_TOO_LONG, f"Batch requests cannot be longer than {MIB} bytes. You have sent {size} bytes."
            )

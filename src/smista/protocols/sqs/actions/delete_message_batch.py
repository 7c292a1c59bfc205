"""DeleteMessageBatch: up to ten, each with an outcome of its own."""

from __future__ import annotations

import msgspec

from smista.protocols.sqs.actions.base import Answer, Failed, QueueParameters, check_entries, failed
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.deleting import delete, read
from smista.protocols.sqs.errors import SqsError
from smista.service.values import Receipt


class DeleteEntry(msgspec.Struct, rename="pascal", kw_only=True):
    id: str | None = None
    receipt_handle: str | None = None


class Done(msgspec.Struct, rename="pascal", gc=False):
    id: str


class SettledBatchAnswer(Answer, rename="pascal", omit_defaults=True):
    successful: list[Done] = msgspec.field(default_factory=list)
    failed: list[Failed] = msgspec.field(default_factory=list)


class DeleteMessageBatch(QueueParameters, rename="pascal", kw_only=True):
    entries: list[DeleteEntry] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        entries = check_entries(self.entries, call.limits, "DeleteMessageBatchRequestEntry")
        answer = SettledBatchAnswer([], [])
        found: list[tuple[str, str, Receipt]] = []
        for id, entry in entries:
            try:
                found.append((id, entry.receipt_handle or "", read(call, target, entry.receipt_handle)))
            except SqsError as error:
                answer.failed.append(failed(id, error))
        errors = await delete(call, target, [(handle, receipt) for _, handle, receipt in found])
        for (id, _, _), refusal in zip(found, errors, strict=True):
            if refusal is None:
                answer.successful.append(Done(id))
            else:
                answer.failed.append(failed(id, refusal))
        return answer

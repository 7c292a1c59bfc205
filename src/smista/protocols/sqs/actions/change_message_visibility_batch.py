"""ChangeMessageVisibilityBatch: up to ten, each with an outcome of its own."""

from __future__ import annotations

import asyncio

from smista.protocols.sqs.actions.base import Answer, QueueParameters, check_entries, failed
from smista.protocols.sqs.actions.delete_message_batch import DeleteEntry, Done, SettledBatchAnswer
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import SqsError
from smista.protocols.sqs.receipts import read
from smista.protocols.sqs.visibility import change, check_timeout


class ChangeEntry(DeleteEntry, rename="pascal", kw_only=True):
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(QueueParameters, rename="pascal", kw_only=True):
    entries: list[ChangeEntry] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        entries = check_entries(self.entries, call.limits, "ChangeMessageVisibilityBatchRequestEntry")
        answer = SettledBatchAnswer([], [])
        # Together, so that they share one write to the log.
        refusals = await asyncio.gather(*(_change(call, target, entry) for _, entry in entries))
        for (id, _), refusal in zip(entries, refusals, strict=True):
            if refusal is None:
                answer.successful.append(Done(id))
            else:
                answer.failed.append(failed(id, refusal))
        return answer


async def _change(call: Call, target: Target, entry: ChangeEntry) -> SqsError | None:
    try:
        timeout_s = check_timeout(call, entry.visibility_timeout)
        receipt = read(call, target, entry.receipt_handle)
    except SqsError as error:
        return error
    return await change(call, target, entry.receipt_handle or "", receipt, timeout_s)

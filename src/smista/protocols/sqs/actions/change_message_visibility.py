"""ChangeMessageVisibility: hold a message longer or shorter, or give it back with 0."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.receipts import read
from smista.protocols.sqs.visibility import change, check_timeout


class ChangeMessageVisibility(QueueParameters, rename="pascal", kw_only=True):
    receipt_handle: str | None = None
    visibility_timeout: int | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        timeout_s = check_timeout(call, self.visibility_timeout)
        receipt = read(call, target, self.receipt_handle)
        refusal = await change(call, target, self.receipt_handle or "", receipt, timeout_s)
        if refusal is not None:
            raise refusal
        return NOTHING

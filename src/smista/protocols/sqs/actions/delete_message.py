"""DeleteMessage: acknowledge a delivery."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.deleting import delete, read


class DeleteMessage(QueueParameters, rename="pascal", kw_only=True):
    receipt_handle: str | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        receipt = read(call, target, self.receipt_handle)
        [error] = await delete(call, target, [(self.receipt_handle or "", receipt)])
        if error is not None:
            raise error
        return NOTHING

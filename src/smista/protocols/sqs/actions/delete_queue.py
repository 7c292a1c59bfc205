"""DeleteQueue: with all its messages, at once."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.actions.create_queue import RECENT_MS
from smista.protocols.sqs.call import Call
from smista.service.commands import queues as commands


class DeleteQueue(QueueParameters, rename="pascal", kw_only=True):
    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        await target.session.run(commands.DeleteQueue(target.name))
        call.memory.attempts.forget_queue(target.namespace, target.name)
        if call.settings.strict_timing:
            now_ms = call.service.now_ms()
            deleted = call.memory.deleted_at_ms
            for key in [key for key, at_ms in deleted.items() if at_ms + RECENT_MS < now_ms]:
                del deleted[key]
            deleted[target.namespace, target.name] = now_ms
        return NOTHING

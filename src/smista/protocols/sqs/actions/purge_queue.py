"""PurgeQueue: everything in it, in whatever state, and what deduplication remembers."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import PURGE_IN_PROGRESS, SqsError
from smista.service.commands import queues as commands

PURGE_MS = 60_000


class PurgeQueue(QueueParameters, rename="pascal", kw_only=True):
    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        if call.settings.strict_timing:
            now_ms = call.service.now_ms()
            purged = call.memory.purged_at_ms
            for key in [key for key, at_ms in purged.items() if at_ms + PURGE_MS <= now_ms]:
                del purged[key]
            if (target.namespace, target.name) in purged:
                raise SqsError(
                    PURGE_IN_PROGRESS, f"Only one PurgeQueue operation on {target.name} is allowed every 60 seconds."
                )
            purged[target.namespace, target.name] = now_ms
        await target.session.run(commands.PurgeQueue(target.name))
        call.memory.attempts.forget_queue(target.namespace, target.name)
        return NOTHING

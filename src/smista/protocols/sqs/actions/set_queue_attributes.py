"""SetQueueAttributes: all of those given, or none."""

from __future__ import annotations

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.dead_letter_policy import finder
from smista.protocols.sqs.errors import missing


class SetQueueAttributes(QueueParameters, rename="pascal", kw_only=True):
    attributes: dict[str, str] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        if not self.attributes:
            raise missing("Attribute.Name")
        settings = target.declared()
        draft = attributes.Draft(settings, call.limits, finder(call, target.name, target.account, target.region))
        attributes.take(draft, self.attributes, is_fifo=settings.ordered)
        await target.alter(attributes.stamp(draft.result(), call.service.now_ms()))
        return NOTHING

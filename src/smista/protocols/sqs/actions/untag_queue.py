"""UntagQueue: keys that the queue does not have are ignored."""

from __future__ import annotations

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import invalid


class UntagQueue(QueueParameters, rename="pascal", kw_only=True):
    tag_keys: list[str] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        if not self.tag_keys:
            raise invalid("Tag keys can't be empty.")
        tags = {key: value for key, value in attributes.tags(target.settings).items() if key not in self.tag_keys}
        await target.alter(attributes.with_tags(target.declared(), tags))
        return NOTHING

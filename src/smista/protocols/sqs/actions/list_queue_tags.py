"""ListQueueTags."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.service.permission import Permission


class QueueTagsAnswer(Answer, rename="pascal", omit_defaults=True):
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class ListQueueTags(QueueParameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        target.session.check(Permission.MONITOR, target.name)
        return QueueTagsAnswer(attributes.tags(target.settings))

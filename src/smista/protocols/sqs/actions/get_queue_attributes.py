"""GetQueueAttributes: settings and approximate counts, all or by name."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.service.commands.queues import ShowStats


class QueueAttributesAnswer(Answer, rename="pascal", omit_defaults=True):
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class GetQueueAttributes(QueueParameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    attribute_names: list[str] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        names = self.attribute_names or []
        for name in names:
            if name != "All" and name not in attributes.NAMES:
                raise attributes.unknown(name)
        if not names:
            return QueueAttributesAnswer()
        asked = sorted(attributes.NAMES) if "All" in names else names
        settings = target.settings
        queue = attributes.QueueView(target.name, settings, dict(settings.annotations), target.arn)
        stats = await target.session.run(ShowStats(target.name))
        shown = {}
        for name in asked:
            field = attributes.COUNTS.get(name)
            value = attributes.show(queue, name) if field is None else str(getattr(stats, field))
            if value is not None:
                shown[name] = value
        return QueueAttributesAnswer(shown)

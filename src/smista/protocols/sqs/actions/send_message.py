"""SendMessage."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.errors import BrokerError
from smista.protocols.sqs.actions.base import Answer
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.sending import MessageParameters, prepare, sequence_number


class SendMessageAnswer(Answer, rename="pascal", omit_defaults=True, gc=False):
    md5_of_body: str = msgspec.field(name="MD5OfMessageBody")
    message_id: str
    md5_of_attributes: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    md5_of_system_attributes: str | None = msgspec.field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class SendMessage(MessageParameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = False

    queue_url: str | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        call.check_key(target)
        prepared = prepare(self, target, call.limits, trace_header=call.trace_header)
        [published] = await target.session.publish(target.name, (prepared.publication,))
        if isinstance(published, BrokerError):
            raise published
        return SendMessageAnswer(
            prepared.md5_of_body,
            published.id,
            prepared.md5_of_attributes,
            prepared.md5_of_system_attributes,
            sequence_number(published.number) if target.settings.ordered else None,
        )

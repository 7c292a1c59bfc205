"""GetQueueUrl: from a queue's name, and perhaps its owner, to its URL."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.actions.create_queue import QueueUrlAnswer
from smista.protocols.sqs.addresses import is_account
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import INVALID_ADDRESS, SqsError, missing
from smista.service.permission import Permission


class GetQueueUrl(Parameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    queue_name: str | None = None
    owner: str | None = msgspec.field(default=None, name="QueueOwnerAWSAccountId")

    async def run(self, call: Call) -> Answer:
        if not self.queue_name:
            raise missing("QueueName")
        if self.owner and not is_account(self.owner):
            raise SqsError(INVALID_ADDRESS, f"The account {self.owner[:100]} is not one: an account has 12 digits.")
        target = call.find(self.queue_name, self.owner)
        target.session.check(Permission.MONITOR, target.name)
        return QueueUrlAnswer(call.url(target.name, target.account, target.region))

"""ListQueues: the URLs of the caller's queues, by prefix and page."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.actions.paging import page
from smista.protocols.sqs.call import Call


class ListQueuesAnswer(Answer, rename="pascal", omit_defaults=True):
    queue_urls: list[str] = msgspec.field(default_factory=list)
    next_token: str | None = None


class ListQueues(Parameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    queue_name_prefix: str | None = None
    max_results: int | None = None
    next_token: str | None = None

    async def run(self, call: Call) -> Answer:
        prefix = self.queue_name_prefix or ""
        shown, token = await page(call.session, self.max_results, self.next_token, prefix=prefix)
        return ListQueuesAnswer([call.url(name, call.account, call.region) for name in shown], token)

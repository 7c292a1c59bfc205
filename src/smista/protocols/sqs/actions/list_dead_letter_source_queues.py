"""ListDeadLetterSourceQueues: the queues whose dead letters come to this one."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs.actions.base import Answer, QueueParameters
from smista.protocols.sqs.actions.paging import page
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.dead_letter_policy import is_source


class SourceQueuesAnswer(Answer, rename="pascal", omit_defaults=False):
    # The only key in the API that starts in lower case; there even when it is empty, as SDKs expect it.
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | msgspec.UnsetType = msgspec.UNSET


class ListDeadLetterSourceQueues(QueueParameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    max_results: int | None = None
    next_token: str | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        names, token = await page(target.session, self.max_results, self.next_token, accepts=is_source(target))
        urls = [call.url(name, target.account, target.region) for name in names]
        return SourceQueuesAnswer(urls, token or msgspec.UNSET)

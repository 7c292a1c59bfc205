"""CreateQueue: idempotent as long as the attributes given are those the queue has."""

from __future__ import annotations

import msgspec

from smista.errors import QueueNotFound
from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.actions.tag_queue import check_tags
from smista.protocols.sqs.addresses import FIFO_SUFFIX, bad_name, check_name
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.dead_letter_policy import finder
from smista.protocols.sqs.errors import (
    INVALID_ATTRIBUTE_VALUE,
    QUEUE_DELETED_RECENTLY,
    QUEUE_NAME_EXISTS,
    SqsError,
    invalid,
    missing,
)
from smista.service.permission import Permission
from smista.service.session import Session
from smista.service.values import QueueSettings

RECENT_MS = 60_000


class QueueUrlAnswer(Answer, rename="pascal"):
    queue_url: str


class CreateQueue(Parameters, rename="pascal", kw_only=True):
    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(default=None, name="tags")
    tags_of_query: dict[str, str] | None = msgspec.field(default=None, name="Tags")

    async def run(self, call: Call) -> Answer:
        name = self.queue_name
        if not name:
            raise missing("QueueName")
        check_name(name, call.limits)
        given = self.attributes or {}
        is_fifo = attributes.is_true(given.get("FifoQueue", ""))
        if name.endswith(FIFO_SUFFIX) and not is_fifo:
            raise bad_name()
        if is_fifo and not name.endswith(FIFO_SUFFIX):
            raise invalid(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end "
                "with .fifo suffix and be 1 to 80 in length."
            )
        tags = check_tags(self.tags or self.tags_of_query or {}, call.limits)
        session = call.session
        session.check(Permission.CONFIGURE, name)
        # This action documents no OverLimit.
        draft = attributes.Draft(
            attributes.DEFAULT,
            call.limits,
            finder(call, name, call.account, call.region),
            over_limit=INVALID_ATTRIBUTE_VALUE,
        )
        attributes.take(draft, given, is_fifo=is_fifo)
        settings = attributes.with_tags(draft.result(), tags)
        try:
            present = session.declared_settings(name)
        except QueueNotFound:
            self._check_timing(call, session, name)
            settings = attributes.stamp(settings, call.service.now_ms(), is_new=True)
            await session.declare_queue(name, settings)
        else:
            self._compare(call, Target(name, call.account, call.region, present, session), settings)
        return QueueUrlAnswer(call.url(name, call.account, call.region))

    def _check_timing(self, call: Call, session: Session, name: str) -> None:
        deleted_at_ms = call.memory.deleted_at_ms.get((session.namespace, name))
        if (
            call.settings.strict_timing
            and deleted_at_ms is not None
            and call.service.now_ms() < deleted_at_ms + RECENT_MS
        ):
            raise SqsError(
                QUEUE_DELETED_RECENTLY,
                "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
            )

    def _compare(self, call: Call, present: Target, asked: QueueSettings) -> None:
        """Only attributes that are given count, as they are shown: 030 is 30."""
        before, after = _shown(call, present, present.settings), _shown(call, present, asked)
        for name in self.attributes or {}:
            if attributes.show(before, name) != attributes.show(after, name):
                raise SqsError(
                    QUEUE_NAME_EXISTS,
                    f"A queue already exists with the same name and a different value for attribute {name}",
                )


def _shown(call: Call, target: Target, settings: QueueSettings) -> attributes.QueueView:
    return attributes.QueueView(target.name, settings, dict(settings.annotations), target.arn)

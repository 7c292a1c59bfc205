"""RedrivePolicy and RedriveAllowPolicy: which queue may be another's dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from smista.errors import QueueNotFound
from smista.protocols.sqs.addresses import FIFO_SUFFIX, read_arn, write_arn
from smista.protocols.sqs.attributes import AllowPolicy, dead_letter_target, policy_error
from smista.protocols.sqs.call import Call, Target
from smista.service import queue_annotations
from smista.service.values import Death, QueueSettings


def finder(call: Call, name: str, account: str, region: str) -> Callable[[str], str]:
    """From the RedrivePolicy of queue `name` to the name of its dead-letter queue."""

    def find(policy: str) -> str:
        arn = read_arn(msgspec.json.decode(policy)["deadLetterTargetArn"])
        if arn is None or (arn.region, arn.account) != (region, account):
            raise policy_error(policy, "Invalid value for deadLetterTargetArn.")
        if arn.name == name:
            # It may be its own, also while it is being created.
            return arn.name
        try:
            target = call.find(arn.name, account, region)
        except QueueNotFound:
            raise policy_error(policy, "Dead letter target does not exist.") from None
        if target.settings.ordered != name.endswith(FIFO_SUFFIX):
            kind = "a FIFO" if name.endswith(FIFO_SUFFIX) else "a standard"
            raise policy_error(policy, f"Dead-letter queue must be same type of queue as the source: {kind} queue.")
        allow = queue_annotations.read(target.settings, "sqs.RedriveAllowPolicy", AllowPolicy)
        if allow is not None and not allow.allows(write_arn(region, account, name)):
            raise policy_error(policy, "The dead-letter queue's RedriveAllowPolicy does not allow this source queue.")
        return arn.name

    return find


def received_before(target: Target, deaths: Sequence[Death]) -> int:
    """How often a dead letter was received before it came into this queue; the broker itself counts anew in each. 0
    where it was sent back, or elsewhere: it is a new message then."""
    if not deaths:
        return 0
    last = deaths[-1]
    try:
        settings = target.session.queue_settings(last.queue)
    except QueueNotFound:
        settings = None
    if settings is not None and dead_letter_target(last.queue, settings) != target.name:
        return 0
    if last.queue == target.name:
        return last.delivery_count * last.count
    return sum(death.delivery_count for death in deaths)


async def has_sources(target: Target) -> bool:
    """Whether the dead letters of any queue go to this one."""
    return bool(await target.session.queue_page(limit=1, accepts=is_source(target)))


def is_source(target: Target) -> Callable[[str, QueueSettings], bool]:
    """Whether the dead letters of a queue go to this one, by its name and settings."""
    return lambda source, settings: dead_letter_target(source, settings) == target.name

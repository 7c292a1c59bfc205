"""RedrivePolicy and RedriveAllowPolicy: which queue may be another's dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from smista.core.errors import NamespaceNotFound, QueueNotFound
from smista.protocols.sqs.addresses import FIFO_SUFFIX, read_arn
from smista.protocols.sqs.attributes import dead_letter_target, policy_error, read_allow_policy
from smista.protocols.sqs.call import Call


def finder(call: Call, name: str, account: str | None = None) -> Callable[[str], str]:
    """From the RedrivePolicy of queue `name` to the name of its dead-letter queue."""

    def find(policy: str) -> str:
        arn = read_arn(msgspec.json.decode(policy)["deadLetterTargetArn"])
        owner = account or call.account
        if arn is None or (arn.region, arn.account) != (call.region, owner):
            raise policy_error(policy, "Invalid value for deadLetterTargetArn.")
        try:
            target = call.find(arn.name, owner)
        except (QueueNotFound, NamespaceNotFound):
            raise policy_error(policy, "Dead letter target does not exist.") from None
        if arn.name == name:
            raise policy_error(policy, "A queue cannot be the dead letter target of itself.")
        if target.settings.ordered != name.endswith(FIFO_SUFFIX):
            kind = "a FIFO" if name.endswith(FIFO_SUFFIX) else "a standard"
            raise policy_error(policy, f"Dead-letter queue must be same type of queue as the source: {kind} queue.")
        allow = target.kept("sqs.RedriveAllowPolicy")
        if allow is not None and not read_allow_policy(allow).allows(call.arn(name, owner)):
            raise policy_error(policy, "The dead-letter queue's RedriveAllowPolicy does not allow this source queue.")
        return arn.name

    return find


def sources(call: Call, name: str, namespace: str) -> list[str]:
    """The queues whose dead letters go to this one."""
    return [
        source
        for source in call.queue_names(namespace)
        if dead_letter_target(source, call.broker.queue_settings(source, namespace=namespace)) == name
    ]

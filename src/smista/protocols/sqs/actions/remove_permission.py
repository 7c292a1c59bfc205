"""RemovePermission: remove a statement from the policy of a queue."""

from __future__ import annotations

from smista.protocols.sqs.actions.add_permission import check_label, read_policy, write_policy
from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import invalid_value
from smista.protocols.sqs.policy import statements_of


class RemovePermission(QueueParameters, rename="pascal", kw_only=True):
    label: str | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        label = check_label(self.label)
        policy = read_policy(call, target)
        statements = statements_of(policy)
        left = [statement for statement in statements if statement.get("Sid") != label]
        if len(left) == len(statements):
            raise invalid_value(label, "Label", "can't find label on existing policy.")
        await write_policy(call, target, {**policy, "Statement": left})
        return NOTHING

"""AddPermission: add a statement to the policy of a queue. Policies are stored and shown, not enforced."""

from __future__ import annotations

import re

import msgspec

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.addresses import is_account
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import OVER_LIMIT, SqsError, invalid, invalid_value, missing
from smista.protocols.sqs.policy import Policy, excess, statements_of
from smista.service import queue_annotations

GRANTABLE = frozenset(
    (
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    )
)
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")


class AddPermission(QueueParameters, rename="pascal", kw_only=True):
    label: str | None = None
    accounts: list[str] | None = msgspec.field(default=None, name="AWSAccountIds")
    actions: list[str] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        label, accounts, actions = check_label(self.label), self.accounts or [], self.actions or []
        self._check(accounts, actions, action_count_max=call.limits.statement_actions)
        policy = read_policy(call, target)
        statements = statements_of(policy)
        if any(statement.get("Sid") == label for statement in statements):
            raise invalid_value(label, "Label", "Already exists.")
        principals = [f"arn:aws:iam::{account}:root" for account in accounts]
        granted = [f"SQS:{action}" for action in actions]
        statements.append(
            {
                "Sid": label,
                "Effect": "Allow",
                "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
                "Action": granted[0] if len(granted) == 1 else granted,
                "Resource": target.arn(),
            }
        )
        policy["Statement"] = statements
        reason = excess(policy, written(policy), call.limits)
        if reason is not None:
            raise SqsError(OVER_LIMIT, reason)
        await write_policy(call, target, policy)
        return NOTHING

    def _check(self, accounts: list[str], actions: list[str], *, action_count_max: int) -> None:
        if not accounts:
            raise missing("AWSAccountIds")
        if not actions:
            raise missing("Actions")
        if len(actions) > action_count_max:
            raise SqsError(OVER_LIMIT, f"{len(actions)} Actions were found, maximum allowed is {action_count_max}.")
        for account in accounts:
            if not is_account(account):
                raise invalid_value(f"[{account[:100]}]", "PrincipalId", "Unable to verify.")
        for action in actions:
            if action not in GRANTABLE:
                raise invalid_value(
                    f"SQS:{action[:100]}",
                    "ActionName",
                    "Only the queue owner is allowed to invoke this action.",
                )


def check_label(label: str | None) -> str:
    if not label:
        raise missing("Label")
    if not _LABEL.fullmatch(label):
        raise invalid("Label can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
    return label


def read_policy(call: Call, target: Target) -> Policy:
    policy = queue_annotations.read(target.settings, "sqs.Policy", Policy)
    if policy is not None:
        return policy
    return {"Version": "2008-10-17", "Id": f"{target.arn()}/SQSDefaultPolicy", "Statement": []}


def written(policy: Policy) -> str:
    return msgspec.json.encode(policy).decode()


async def write_policy(call: Call, target: Target, policy: Policy) -> None:
    draft = attributes.Draft(target.declared(), call.limits, lambda text: text)
    draft.annotate("Policy", written(policy) if policy["Statement"] else "")
    await target.alter(attributes.stamp(draft.result(), call.service.now_ms()))

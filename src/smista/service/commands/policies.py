"""Policies: settings for all queues of a name pattern, given by an operator."""

from __future__ import annotations

from typing import Annotated

import msgspec

from smista.core.policies import PRIORITY_MAX
from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import Name, Success
from smista.service.permission import Permission
from smista.service.queue_settings import GivenSettings, given

Priority = Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class PolicySet(msgspec.Struct):
    policy: str
    queues: int
    """For how many queues it holds now."""
    success: bool = True


class SetPolicy(Command[PolicySet], needs=Permission.ADMINISTER, changes=True):
    """Give settings to all queues whose names match a pattern, those that are there and those to come."""

    name = "policy.set"

    policy: Name
    pattern: Name
    settings: GivenSettings  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    priority: Priority = 0

    async def run(self, context: Context) -> PolicySet:
        count = await context.broker.declaring.set_policy(
            self.policy, self.pattern, given(self.settings), priority=self.priority, namespace=context.namespace
        )
        return PolicySet(self.policy, count)


class PolicyAnswer(msgspec.Struct):
    policy: str
    pattern: str
    priority: int
    settings: GivenSettings  # type: ignore[valid-type]  # as above


class PolicyList(msgspec.Struct):
    policies: list[PolicyAnswer]
    """Of several that match a queue, the first one holds."""


class ListPolicies(Command[PolicyList], needs=Permission.MONITOR):
    """All policies, the one that wins first."""

    name = "policy.list"

    async def run(self, context: Context) -> PolicyList:
        return PolicyList(
            [
                PolicyAnswer(policy.name, policy.pattern, policy.priority, GivenSettings(**policy.settings))
                for policy in context.broker.catalog.policies(namespace=context.namespace)
            ]
        )


class DeletePolicy(Command[Success], needs=Permission.ADMINISTER, changes=True):
    """Remove a policy; its queues have another one's settings then, or what they were declared with."""

    name = "policy.delete"

    policy: Name

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.delete_policy(self.policy, namespace=context.namespace)
        return Success()

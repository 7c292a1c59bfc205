"""Policies: settings for all queues of a name pattern, given by an operator."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from smista.core.policies import PRIORITY_MAX
from smista.protocols.http.commands.base import Command, Door, Name, Success, command
from smista.protocols.http.commands.queues import GivenSettings, given

Priority = Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class PolicySet(msgspec.Struct):
    policy: str
    queues: int
    """For how many queues it holds now."""
    success: bool = True


@command
class SetPolicy(Command):
    """Give settings to all queues whose names match a pattern, those that are there and those to come."""

    name: ClassVar[str] = "policy.set"
    answer: ClassVar[Any] = PolicySet

    policy: Name
    pattern: Name
    settings: GivenSettings  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    priority: Priority = 0

    async def run(self, door: Door) -> PolicySet:
        count = await door.broker.set_policy(
            self.policy, self.pattern, given(self.settings), priority=self.priority, namespace=self.namespace
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


@command
class ListPolicies(Command):
    """All policies, the one that wins first."""

    name: ClassVar[str] = "policy.list"
    answer: ClassVar[Any] = PolicyList

    async def run(self, door: Door) -> PolicyList:
        return PolicyList(
            [
                PolicyAnswer(policy.name, policy.pattern, policy.priority, GivenSettings(**policy.settings))
                for policy in door.broker.policies(namespace=self.namespace)
            ]
        )


@command
class DeletePolicy(Command):
    """Remove a policy; its queues have another one's settings then, or what they were declared with."""

    name: ClassVar[str] = "policy.delete"
    answer: ClassVar[Any] = Success

    policy: Name

    async def run(self, door: Door) -> Success:
        await door.broker.delete_policy(self.policy, namespace=self.namespace)
        return Success()

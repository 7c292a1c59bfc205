"""Calls about policies: settings that an operator gives to all queues of a name pattern."""

from __future__ import annotations

from typing import Unpack

from smista.client.answers import Done, Policies, Policy, PolicySet
from smista.client.calls import Calls
from smista.client.queues import SettingsGiven


class PolicyCalls(Calls):
    async def set_policy(self, name: str, pattern: str, *, priority: int = 0, **given: Unpack[SettingsGiven]) -> int:
        """Give these settings to all queues whose names match `pattern`, there already or to come; returns
        for how many queues it holds now.

        In a pattern `*` stands for anything, `?` for one character. Of several policies that match a queue the one of
        the highest priority holds. What a queue was declared with comes back when the policy is deleted.
        """
        answer = await self._ask(
            "policy.set",
            PolicySet,
            is_repeatable=True,
            policy=name,
            pattern=pattern,
            priority=priority,
            settings=dict(given),
        )
        return answer.queues

    async def policies(self) -> list[Policy]:
        """All policies, the one that wins first."""
        return (await self._ask("policy.list", Policies, is_repeatable=True)).policies

    async def delete_policy(self, name: str) -> None:
        """Delete a policy: its queues are again as they were declared."""
        await self._ask("policy.delete", Done, policy=name)

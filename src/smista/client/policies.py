"""Calls about policies: settings that an operator gives to all queues whose names match a pattern."""

from __future__ import annotations

from typing import Unpack

from smista.client.answers import Done, Policies, Policy, PolicySet
from smista.client.calls import Calls
from smista.client.queues import SettingsGiven


class PolicyCalls(Calls):
    async def set_policy(self, name: str, pattern: str, *, priority: int = 0, **given: Unpack[SettingsGiven]) -> int:
        """Give these settings to all queues whose names match `pattern`, present and future; returns to how many queues
        it applies now.

        In a pattern `*` matches any text and `?` one character. If several policies match a queue, the one with the
        highest priority applies. When the policy is deleted, its queues have the settings they were declared with.
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
        """All policies, in order of precedence."""
        return (await self._ask("policy.list", Policies, is_repeatable=True)).policies

    async def delete_policy(self, name: str) -> None:
        """Delete a policy: its queues have the settings they were declared with again."""
        await self._ask("policy.delete", Done, policy=name)

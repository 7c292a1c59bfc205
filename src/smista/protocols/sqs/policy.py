"""The policy of a queue: stored and shown, not enforced. Only its size is checked, by AWS's quotas."""

from __future__ import annotations

from smista.protocols.sqs.limits import Limits

Policy = dict[str, object]


def statements_of(policy: Policy) -> list[dict[str, object]]:
    found = policy.get("Statement")
    if isinstance(found, dict):
        return [found]
    return [statement for statement in found if isinstance(statement, dict)] if isinstance(found, list) else []


def excess(policy: Policy, text: str, limits: Limits) -> str | None:
    """Which quota a policy, or the text it is written in, exceeds; None where it exceeds none."""
    if len(text.encode()) > limits.policy_bytes:
        return "Submitted policy is over max allowed size."
    statements = statements_of(policy)
    for statement in statements:
        actions = _count(statement.get("Action")) + _count(statement.get("NotAction"))
        if actions > limits.statement_actions:
            return (
                f"{actions} actions were found in a statement from the submitted policy, max allowed is "
                f"{limits.statement_actions}"
            )
    for what, count, most in (
        ("statements", len(statements), limits.policy_statements),
        ("principals", sum(map(_principal_count, statements)), limits.policy_principals),
        ("conditions", sum(map(_condition_count, statements)), limits.policy_conditions),
    ):
        if count > most:
            return f"{count} {what} were found in the submitted policy, max allowed is {most}"
    return None


def _principal_count(statement: dict[str, object]) -> int:
    """A principal is `"*"`, or one or several of each kind."""
    count = 0
    for name in ("Principal", "NotPrincipal"):
        principal = statement.get(name)
        count += sum(map(_count, principal.values())) if isinstance(principal, dict) else _count(principal)
    return count


def _condition_count(statement: dict[str, object]) -> int:
    """Of all operators, the keys that they compare."""
    condition = statement.get("Condition")
    return sum(map(_count, condition.values())) if isinstance(condition, dict) else 0


def _count(value: object) -> int:
    """A single value may stand for a list of one."""
    if value is None:
        return 0
    return len(value) if isinstance(value, (list, dict)) else 1

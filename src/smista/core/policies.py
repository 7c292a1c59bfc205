"""Policies: settings that an operator gives to all queues of a name pattern.

    what a program declared      max_retries 3, lease_ms 30000, max_depth none
    policy "small" for orders*                                  max_depth 1000
    ─────────────────────────────────────────────────────────────────────────
    what the queue orders.eu has max_retries 3, lease_ms 30000, max_depth 1000

The rules, all of which are kept here:

- A queue keeps what it was declared with (or altered to) beside what it has. Declaring it again compares with the
  former, so a program never fails because of a policy, and without the policy the queue is as it was declared.
- Of the policies of its namespace that match its name, the one of the highest priority holds, and of equal ones the
  first by name: one policy, not a mixture, so that whoever looks at a queue sees where its settings come from.
- The policy wins for the settings it names, the declaration for all others. Limits are no exception: an operator who
  raises one means it.
- A pattern is matched against the whole name, with `*`, `?` and `[...]` as in a shell. No regular expressions: some of
  them take for ever, and a dot in a name would match anything.
- A policy may name what can be altered, whatever is in the queue: not `durable`, not `ordered`, `group_turns` and
  `fair`, on which the order of the ready messages is built, not `annotations`, which belong to the protocols.
- What would be at odds gives way to what the policy names: of a dead-letter queue and an exchange the policy's target
  stands alone; `prefetch` stays within `max_prefetch`, `default_priority` within `max_priority`. A policy that names a
  dead-letter queue leaves that queue's own alone. Where nothing helps, the queue stays as it was declared, and shows no
  policy.

So what a queue has follows from its declaration and the policies alone, in whatever order they came. That is why the
log holds these two and never what follows from them, and why recovery applies policies once, at its end.

What this module must not know: queues, the journal. Those commands are in `governing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from typing import Any

import msgspec

from smista.core.settings import DEFAULT, NAME_BYTES_MAX, DeadLetterMode, QueueSettings, check_name, check_settings
from smista.errors import InvalidArgument, InvalidName, InvalidSettings, PolicyNotFound
from smista.wording import explained

NOT_BY_POLICY = frozenset(("annotations", "durable", "fair", "group_turns", "ordered"))
PRIORITY_MAX = 1 << 31
POLICIES_MAX = 1_000
"""In a namespace: each is tried for each queue that is declared."""
_FITTED_MAX = 1_000


class Policy:
    __slots__ = ("_fitted", "_match", "name", "pattern", "position", "priority", "settings")

    def __init__(self, name: str, pattern: str, priority: int, settings: Mapping[str, Any]) -> None:
        """Raises `InvalidName`, `InvalidSettings` or `InvalidArgument` where it makes no sense."""
        self.name = check_name("policy", name)
        self.pattern = _checked_pattern(pattern)
        if type(priority) is not int or not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
            raise InvalidArgument(f"A policy's priority is {priority!r:.40}; give it a whole number.")
        self.priority = priority
        self.settings = _checked_settings(settings)
        self.position = 0
        """The log block that holds it."""
        self._match = re.compile(translate(pattern)).match
        # Queues declared alike share one settings object, with a policy too.
        self._fitted: dict[tuple[QueueSettings, bool], QueueSettings | None] = {}

    def matches(self, queue: str) -> bool:
        return self._match(queue) is not None

    def fit(self, queue: str, declared: QueueSettings) -> QueueSettings | None:
        """What a queue of this name that was declared so has by this policy; None where they do not go together."""
        is_own_target = self.settings.get("dead_letter_queue") == queue
        key = (declared, is_own_target)
        if key not in self._fitted:
            if len(self._fitted) >= _FITTED_MAX:
                self._fitted.clear()
            named = {name: value for name, value in self.settings.items() if name != "dead_letter_queue"}
            self._fitted[key] = _together(declared, named if is_own_target else self.settings)
        return self._fitted[key]

    def gives(self, declared: QueueSettings, settings: QueueSettings) -> dict[str, Any]:
        """What it gives a queue that was declared so and has these settings by it: those it names, unless it leaves
        them alone there, and those that gave way."""
        return {
            name: value
            for name in QueueSettings.__struct_fields__
            if (value := getattr(settings, name)) != getattr(declared, name)
            or (name in self.settings and self.settings[name] == value)
        }


class Policies:
    """Those of one namespace."""

    __slots__ = ("_in_order",)

    def __init__(self) -> None:
        self._in_order: list[Policy] = []
        """The one that wins first."""

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._in_order)

    def find(self, name: str) -> Policy | None:
        return next((policy for policy in self._in_order if policy.name == name), None)

    def get(self, name: str) -> Policy:
        policy = self.find(name)
        if policy is None:
            raise PolicyNotFound(f"There is no policy {name!r:.300}; list the policies to see which there are.")
        return policy

    def check_room(self, name: str) -> None:
        if len(self) >= POLICIES_MAX and self.find(name) is None:
            raise InvalidArgument(f"There are {len(self)} policies; {POLICIES_MAX} is the most. Delete one first.")

    def put(self, policy: Policy) -> None:
        """Put in a policy, in the place of one of its name."""
        self.drop(policy.name)
        self._in_order = sorted((*self._in_order, policy), key=lambda one: (-one.priority, one.name))

    def drop(self, name: str) -> None:
        self._in_order = [policy for policy in self._in_order if policy.name != name]

    def govern(self, queue: str, declared: QueueSettings) -> tuple[QueueSettings, str | None]:
        """What a queue has that was declared so, and the name of the policy that has to do with it."""
        for policy in self._in_order:
            if policy.matches(queue):
                fitted = policy.fit(queue, declared)
                return (declared, None) if fitted is None else (fitted, policy.name)
        return declared, None


def _together(declared: QueueSettings, named: Mapping[str, Any]) -> QueueSettings | None:
    given = dict(named)
    if given.get("dead_letter_queue") is not None:
        given.setdefault("dead_letter_exchange", None)
    elif given.get("dead_letter_exchange") is not None:
        given.setdefault("dead_letter_queue", None)
    if "dead_letter_exchange" in given:
        # A key belongs to the exchange it was given with.
        given.setdefault("dead_letter_routing_key", None)
    if declared.dead_letter is DeadLetterMode.DROP and (
        given.get("dead_letter_queue") is not None or given.get("dead_letter_exchange") is not None
    ):
        # As AMQP declares a queue without a dead-letter exchange: whoever names a target wants it used.
        given.setdefault("dead_letter", DeadLetterMode.MOVE_OR_DROP)
    merged = msgspec.structs.replace(declared, **given)
    for below, above in (("prefetch", "max_prefetch"), ("default_priority", "max_priority")):
        if getattr(merged, below) > getattr(merged, above):
            gives_way, stays = (below, above) if above in given else (above, below)
            merged = msgspec.structs.replace(merged, **{gives_way: getattr(merged, stays)})
    try:
        check_settings(merged)
    except InvalidSettings:
        return None
    return declared if merged == declared else merged


def _checked_pattern(pattern: object) -> str:
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= NAME_BYTES_MAX or not pattern.isprintable():
        raise InvalidName(
            f"A policy's pattern is {pattern!a:.300}; give 1 to {NAME_BYTES_MAX} printable characters, such as orders*."
        )
    return pattern


_DECLARED = (DEFAULT, QueueSettings(dead_letter_exchange="some", limit_ready_only=True))
"""What queues are declared with that differ in what goes with them: a policy has to go with one of them."""


def _checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a policy names, in their own types."""
    if not settings:
        raise InvalidSettings("A policy names the settings it gives; this one names none.")
    for name in settings:
        if name in NOT_BY_POLICY:
            raise InvalidSettings(f"Setting {name} is given when a queue is declared; a policy cannot change it.")
    try:
        typed = msgspec.convert(msgspec.to_builtins(dict(settings)), QueueSettings)
    except (msgspec.ValidationError, TypeError) as error:
        why = explained(error, QueueSettings, place="the policy's settings")
        raise InvalidSettings(f"A setting of the policy is not valid: {why}") from None
    given = {name: getattr(typed, name) for name in settings}
    if all(_together(declared, given) is None for declared in _DECLARED):
        # Says what is wrong.
        check_settings(typed)
        raise InvalidSettings("The policy's settings are at odds with each other.")
    return given

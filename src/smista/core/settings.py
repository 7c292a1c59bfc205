"""The settings of a queue. Every field has its default here and nowhere else."""

from __future__ import annotations

import enum
from functools import cached_property

import msgspec

from smista.core.message import FOREVER_MS
from smista.errors import InvalidArgument, InvalidName, InvalidSettings
from smista.wording import explained

DAY_MS = 24 * 60 * 60 * 1000
PRIORITY_MAX = 255
NAME_BYTES_MAX = 255
PREFETCH_MAX = 1 << 31


class Backoff(enum.StrEnum):
    NONE = "none"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Overflow(enum.StrEnum):
    REJECT = "reject"
    DROP_OLDEST = "drop-oldest"
    DEAD_LETTER_OLDEST = "dead-letter-oldest"
    DEAD_LETTER_NEWEST = "dead-letter-newest"  # refused as by `reject`, and set aside


class DeadLetterMode(enum.StrEnum):
    """Where a message goes that has failed for good."""

    MOVE = "move"  # to the dead-letter queue or exchange; parked if none takes it
    MOVE_OR_DROP = "move-or-drop"  # the same, but nowhere if none takes it, as RabbitMQ does
    PARK = "park"  # stays in its own queue, in state dead
    DROP = "drop"  # nowhere; only where an operator asks for it


class PriorityPolicy(enum.StrEnum):
    STRICT = "strict"
    WEIGHTED = "weighted"


class DeduplicationScope(enum.StrEnum):
    QUEUE = "queue"
    GROUP = "group"


class IfExists(enum.StrEnum):
    """What declaring a queue does where one of that name is there."""

    SAME = "same"  # nothing, if it has these settings; else it is refused
    KEEP = "keep"  # nothing: the queue stays as it is, whatever its settings


class QueueSettings(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, dict=True
):
    lease_ms: int = 30_000
    """How long a delivery may be held."""
    max_retries: int | None = 3
    """Redeliveries after the first delivery; none for no limit."""
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    """How the wait before a retry grows."""
    retry_base_ms: int = 1_000
    """Unit of the back-off; an exponential one waits 2, 4, 8, ... times it."""
    retry_cap_ms: int = 900_000
    """The longest back-off."""
    retry_jitter: float = 0.0
    """Up to this share of a back-off is taken off at random."""
    backoff_on_timeout: bool = False
    """Whether a message whose lease ran out waits as after a nack."""
    dead_letter: DeadLetterMode = DeadLetterMode.MOVE
    """What becomes of a message that has no retries left."""
    dead_letter_queue: str | None = None
    """The target of move; none for QUEUE_dlq, declared when first needed."""
    dead_letter_exchange: str | None = None
    """An exchange instead of a queue as the target."""
    dead_letter_routing_key: str | None = None
    """The key for that exchange; none for the message's own."""
    dead_letter_max_depth: int | None = 10_000
    """The max depth of the dead-letter queue, if it is declared for this one."""
    own_dead_letters: bool = False
    """Whether the queue is its own dead-letter queue: failed messages go to its end."""
    max_depth: int | None = None
    """Most messages: ready, scheduled and in flight."""
    max_bytes: int | None = None
    """Most bytes of bodies."""
    limit_ready_only: bool = False
    """Whether max depth counts only ready messages."""
    body_bytes_max: int | None = None
    """Largest body; none for the broker's limit."""
    overflow: Overflow = Overflow.REJECT
    """What happens on a publish to a full queue."""
    message_ttl_ms: int | None = None
    """Time to live of messages that have no shorter one."""
    retention_ms: int | None = 14 * DAY_MS
    """A ready or dead message older than this is removed."""
    delay_ms: int = 0
    """Delay of messages that have none."""
    durable: bool = True
    """Whether queue and messages are written to disk; cannot be altered."""
    prefetch: int = 10
    """Prefetch of a subscription that asks for none."""
    max_prefetch: int = 1_000
    """Largest prefetch of a subscription."""
    dedup_window_ms: int = 300_000
    """How long a deduplication id is remembered."""
    dedup_by_body: bool = False
    """Deduplicate messages without an id by their bodies."""
    dedup_scope: DeduplicationScope = DeduplicationScope.QUEUE
    """Whether an id counts for the queue or for each group."""
    rate_limit: float | None = None
    """Deliveries a second."""
    ordered: bool = False
    """Strict order within a group."""
    group_turns: bool = False
    """Whether a group of an ordered queue that is ready again goes behind the others."""
    fair: bool = False
    """Whether deliveries are shared evenly between groups."""
    max_priority: int = PRIORITY_MAX
    """The highest priority it takes."""
    clamp_priority: bool = False
    """Whether a higher priority is lowered instead of refused."""
    default_priority: int = 0
    """Priority of messages that have none."""
    priority_policy: PriorityPolicy = PriorityPolicy.STRICT
    """Whether low priorities wait for all higher ones, or get a share of deliveries."""
    single_active_consumer: bool = False
    """Serve one subscription at a time."""
    expires_ms: int | None = None
    """Delete the queue when it was unused for this long."""
    annotations: tuple[tuple[str, str], ...] = ()
    """What protocols keep with the queue for themselves."""

    # Asked of every message; settings never change, other ones take their place.

    @cached_property
    def highest_priority(self) -> int:
        """The highest that a publisher may give."""
        return PRIORITY_MAX if self.clamp_priority else self.max_priority

    @cached_property
    def is_limited(self) -> bool:
        """Whether the queue holds only so much."""
        return self.max_depth is not None or self.max_bytes is not None

    @cached_property
    def is_plain(self) -> bool:
        """Whether a message enters at once and stays, with nothing to look up, make room for or time."""
        return not (
            self.ordered or self.dedup_by_body or self.is_limited or self.message_ttl_ms is not None or self.delay_ms
        )


DEFAULT = QueueSettings()

_CHOICES: dict[str, type[enum.StrEnum]] = {
    field.name: field.type
    for field in msgspec.structs.fields(QueueSettings)
    if isinstance(field.type, type) and issubclass(field.type, enum.StrEnum)
}

# field: (least, most), None is allowed where the field's type allows it
SETTING_RANGES: dict[str, tuple[float, float]] = {
    "lease_ms": (0, FOREVER_MS),
    "max_retries": (0, 1 << 31),
    "retry_base_ms": (0, FOREVER_MS),
    "retry_cap_ms": (0, FOREVER_MS),
    "retry_jitter": (0.0, 1.0),
    "dead_letter_max_depth": (1, 1 << 62),
    "max_depth": (0, 1 << 62),
    "max_bytes": (0, 1 << 62),
    "body_bytes_max": (1, 1 << 31),
    "message_ttl_ms": (0, FOREVER_MS),
    "retention_ms": (1, FOREVER_MS),
    "delay_ms": (0, FOREVER_MS),
    "prefetch": (1, PREFETCH_MAX),
    "max_prefetch": (1, PREFETCH_MAX),
    "dedup_window_ms": (0, FOREVER_MS),
    "rate_limit": (0.001, 1e9),
    "max_priority": (0, PRIORITY_MAX),
    "default_priority": (0, PRIORITY_MAX),
    "expires_ms": (1, FOREVER_MS),
}


def check_settings(settings: QueueSettings) -> None:
    """Raise `InvalidSettings` naming the first setting that is of the wrong type, out of range or at odds."""
    try:
        msgspec.convert(msgspec.to_builtins(settings), QueueSettings)
    except (msgspec.ValidationError, TypeError) as error:
        why = explained(error, QueueSettings, place="the queue's settings")
        raise InvalidSettings(f"A setting is not valid: {why}") from None
    for field, choices in _CHOICES.items():
        value = getattr(settings, field)
        # Text equals its choice, and is not that choice wherever one is asked for.
        if type(value) is not choices:
            raise InvalidSettings(no_choice(f"Setting {field}", value, choices))
    for field, (least, most) in SETTING_RANGES.items():
        value = getattr(settings, field)
        if value is not None and not least <= value <= most:
            raise InvalidSettings(f"Setting {field} is {value}; give it a value from {least} to {most}.")
    for field in ("max_depth", "max_bytes"):
        if getattr(settings, field) == 0 and not settings.limit_ready_only:
            raise InvalidSettings(f"Setting {field} is 0; only with limit_ready_only could anything pass.")
    if settings.default_priority > settings.max_priority:
        raise InvalidSettings(
            f"Setting default_priority ({settings.default_priority}) is above max_priority "
            f"({settings.max_priority}); lower the one or raise the other."
        )
    if settings.prefetch > settings.max_prefetch:
        raise InvalidSettings(
            f"Setting prefetch ({settings.prefetch}) is above max_prefetch ({settings.max_prefetch})."
        )
    if settings.ordered and settings.fair:
        raise InvalidSettings("A queue is ordered or fair, not both: order holds a group back, fairness does not.")
    if settings.group_turns and not settings.ordered:
        raise InvalidSettings("Setting group_turns needs ordered: only groups that are kept in order take turns.")
    if settings.dead_letter_queue is not None and settings.dead_letter_exchange is not None:
        raise InvalidSettings("Name a dead_letter_queue or a dead_letter_exchange, not both.")
    if settings.dead_letter_queue is not None:
        check_name("dead-letter queue", settings.dead_letter_queue)
    if settings.dead_letter_exchange is not None:
        check_text("dead_letter_exchange", settings.dead_letter_exchange)
    if settings.dead_letter_routing_key is not None:
        check_text("dead_letter_routing_key", settings.dead_letter_routing_key)
    if settings.dead_letter_routing_key is not None and settings.dead_letter_exchange is None:
        raise InvalidSettings("A dead_letter_routing_key needs a dead_letter_exchange.")


def no_choice(name: str, value: object, choices: type[enum.StrEnum]) -> str:
    """The error for a value that is none of the choices."""
    given = f"the text {value!a:.80}" if type(value) is str else f"{value!a:.80}"
    names = ", ".join(f"{one.name} ({one.value})" for one in choices)
    return f"{name} is {given}; give it one of {choices.__name__}: {names}."


def check_text(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless `value` is text that can be written as UTF-8 (half a surrogate pair cannot)."""
    if type(value) is not str:
        raise InvalidArgument(f"{name} is {value!r:.80}; give text.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{name} is {value!a:.80}, which cannot be written as UTF-8.") from None


def check_name(kind: str, name: object) -> str:
    """Return `name` if it can name a `kind` (queue, exchange, namespace), else raise `InvalidName`."""
    if not isinstance(name, str):
        raise InvalidName(f"A {kind} is named by text, not by {type(name).__name__}.")
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
        raise InvalidName(f"A {kind}'s name has 1 to {NAME_BYTES_MAX} bytes; {name[:40]!r} does not.")
    if not name.isprintable():
        raise InvalidName(f"The {kind} name {name!r} holds characters that cannot be printed; leave them out.")
    return name


def differences(present: QueueSettings, asked: QueueSettings) -> list[str]:
    """The settings in which the two differ, each as `name: present 1, asked for 2`. Annotations are none."""
    return [
        f"{field}: present {_written(getattr(present, field))}, asked for {_written(getattr(asked, field))}"
        for field in QueueSettings.__struct_fields__
        if field != "annotations" and getattr(present, field) != getattr(asked, field)
    ]


def _written(value: object) -> str:
    """As it stands in a request."""
    return msgspec.json.encode(value).decode()

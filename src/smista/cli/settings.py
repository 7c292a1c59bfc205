"""A queue's settings: making a queue with them, changing and showing them. Every setting is an option; those in
milliseconds are durations without the `_ms`: `lease_ms` is `--lease 30s`."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smista.cli.arguments import Queue
from smista.cli.connected import client_command
from smista.cli.durations import duration_ms, shown_duration
from smista.cli.exits import WrongUsage
from smista.cli.generated import GeneratedCommand, option
from smista.cli.output import Output
from smista.cli.table import Column, print_table

if TYPE_CHECKING:
    from smista.client import AsyncClient

commands = typer.Typer()

NONE = "none"
COLUMNS = [
    Column("name"),
    Column("value", is_flexible=True),
    Column("declared", is_flexible=True),
    Column("by policy"),
]
MEANINGS = {
    "lease_ms": "How long a delivery may be held.",
    "max_retries": "Redeliveries after the first delivery; none for no limit.",
    "retry_backoff": "How the wait before a retry grows.",
    "retry_base_ms": "Unit of the back-off; an exponential one waits 2, 4, 8, ... times it.",
    "retry_cap_ms": "The longest back-off.",
    "retry_jitter": "Up to this share of a back-off is taken off at random.",
    "backoff_on_timeout": "Whether a lease that ran out waits like a nack.",
    "dead_letter": "Where a message goes that failed for good.",
    "dead_letter_queue": "The target of move; none for QUEUE_dlq, made when first needed.",
    "dead_letter_exchange": "An exchange as the target instead.",
    "dead_letter_routing_key": "The key for that exchange; none for the message's own.",
    "dead_letter_max_depth": "The max depth of a dead-letter queue made for this one.",
    "max_depth": "Most messages: ready, scheduled and in flight.",
    "max_bytes": "Most bytes of bodies.",
    "limit_ready_only": "Whether max depth counts only what is ready.",
    "body_bytes_max": "Largest body; none for the broker's limit.",
    "overflow": "What a publish to a full queue does.",
    "message_ttl_ms": "Time to live, where a message names none shorter.",
    "retention_ms": "A ready or dead message older than this goes.",
    "delay_ms": "Delay of messages that name none.",
    "durable": "Whether queue and messages are written to disk; cannot be altered.",
    "prefetch": "Unsettled deliveries of a subscription that asks for no number.",
    "max_prefetch": "The most it may ask for.",
    "dedup_window_ms": "How long a deduplication id is remembered.",
    "dedup_by_body": "Know messages without an id by their bodies.",
    "dedup_scope": "Whether ids are told apart by group too.",
    "rate_limit": "Deliveries a second.",
    "ordered": "Strict order within a group.",
    "own_dead_letters": "Let the queue be its own dead-letter queue: what consumers give up goes to its end.",
    "group_turns": "Put a group of an ordered queue that is ready again behind the others.",
    "fair": "Share out deliveries between groups.",
    "max_priority": "The highest priority it takes.",
    "clamp_priority": "Lower a higher priority instead of refusing it.",
    "default_priority": "For messages that name none.",
    "priority_policy": "Whether low priorities wait for all higher ones, or get a share.",
    "single_active_consumer": "Serve one subscription at a time.",
    "expires_ms": "Delete the queue when nobody used it for so long.",
}


class SettingsCommand(GeneratedCommand):
    tells_defaults = False

    def names(self) -> Iterable[str]:
        """The settings it has options for."""
        return option_kinds()

    def make_options(self) -> Iterator[inspect.Parameter]:
        from smista.core.settings import QueueSettings

        defaults = QueueSettings()
        kinds = option_kinds()
        for name in self.names():
            kind = kinds[name]
            default = f" Default {shown_setting(name, getattr(defaults, name))}." if self.tells_defaults else ""
            yield option(name, flag(name), (MEANINGS.get(name, "") + default).strip(), metavar=_metavar(name, kind))


class DeclareCommand(SettingsCommand):
    tells_defaults = True


@client_command(commands, cls=DeclareCommand, epilog="The settings are explained in docs/queues.md.")
async def declare(
    client: AsyncClient,
    output: Output,
    given: dict[str, Any],
    queue: Queue,
    if_exists: Annotated[
        Literal["same", "keep"],
        typer.Option(help="Where it is there: fail unless it has these settings, or take it as it is."),
    ] = "same",
) -> None:
    """Make a queue, or see that it is there with these settings."""
    is_new = await client.declare_queue(queue, if_exists=if_exists, **read_settings(given))
    output.say(
        f"Queue {queue} is declared." if is_new else f"Queue {queue} was there already.", queue=queue, created=is_new
    )


@client_command(commands, cls=SettingsCommand, epilog="The settings are explained in docs/queues.md.")
async def alter(client: AsyncClient, output: Output, given: dict[str, Any], queue: Queue) -> None:
    """Change some settings of a queue; the others stay."""
    changes = read_settings(given)
    if not changes:
        raise WrongUsage("No setting is given; name those to change.")
    settings = await client.alter_queue(queue, **changes)
    said = ", ".join(written_setting(name, getattr(settings, name)) for name in changes)
    found = _all(settings)
    output.say(f"Queue {queue} now has {said}.", queue=queue, settings=found)
    others = [name for name, value in changes.items() if found[name] != value]
    if others and (policy := (await client.stats(queue)).policy) is not None:
        given_by = ", ".join(map(flag, others))
        output.remark(f"Policy {policy} gives {given_by}; what you asked for holds when the policy is deleted.")


@client_command(commands)
async def settings(client: AsyncClient, output: Output, queue: Queue) -> None:
    """Show all settings of a queue: what it has, what was declared, and what a policy gives."""
    found = await client.explain_settings(queue)
    has, declared = _all(found.settings), _all(found.declared)
    if output.is_json:
        by_policy = {"policy": found.policy, "effective_policy_definition": found.effective_policy_definition}
        output.line({**has, "declared": declared, **by_policy})
    elif found.policy is None:
        print_table(COLUMNS[:2], [(flag(name)[2:], shown_setting(name, has[name])) for name in option_kinds()])
    else:
        rows = [
            (
                flag(name)[2:],
                shown_setting(name, has[name]),
                shown_setting(name, declared[name]),
                found.policy if name in found.effective_policy_definition else "",
            )
            for name in option_kinds()
        ]
        print_table(COLUMNS, rows)


def flag(name: str) -> str:
    return "--" + name.removesuffix("_ms").replace("_", "-")


def written_setting(name: str, value: object) -> str:
    """As it stands on a command line."""
    if isinstance(value, bool):
        return flag(name) if value else f"--no-{flag(name).removeprefix('--')}"
    return f"{flag(name)} {shown_setting(name, value)}"


def shown_setting(name: str, value: object) -> str:
    if value is None:
        return NONE
    if name.endswith("_ms") and isinstance(value, int):
        return shown_duration(value) if value else "0"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were written, in their own types."""
    return {name: _read(name, value, option_kinds()[name]) for name, value in given.items()}


def _read(name: str, value: Any, kind: Any) -> Any:
    import msgspec

    if isinstance(value, bool):
        return value
    if value.lower() == NONE and type(None) in typing.get_args(kind):
        return None
    try:
        if name.endswith("_ms"):
            return duration_ms(value)
        read = msgspec.convert(value, kind, strict=False)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=flag(name)) from None
    except msgspec.ValidationError:
        raise typer.BadParameter(f"{value!r} is not {_wanted(kind)}.", param_hint=flag(name)) from None
    return read.value if isinstance(read, enum.Enum) else read


def _all(settings: Any) -> dict[str, Any]:
    """All of them, those at their defaults too."""
    import msgspec

    return msgspec.structs.asdict(settings)


def option_kinds() -> dict[str, Any]:
    """The settings that are options, with their types: all but those that hold more than one value, which programs
    write and not people."""
    from smista.core.settings import QueueSettings

    hints = typing.get_type_hints(QueueSettings)
    return {name: kind for name, kind in hints.items() if typing.get_origin(kind) in (None, types.UnionType)}


def _wanted(kind: Any) -> str:
    """What a value has to be, in words."""
    [main, *rest] = typing.get_args(kind) or (kind,)
    if issubclass(main, enum.Enum):
        said = "one of " + ", ".join(member.value for member in main)
    else:
        said = {int: "a whole number", float: "a number"}.get(main, "a name")
    return f"{said}, or {NONE}" if rest else said


def _metavar(name: str, kind: Any) -> str | None:
    """None for a switch."""
    if kind is bool:
        return None
    [main, *rest] = typing.get_args(kind) or (kind,)
    if name.endswith("_ms"):
        said = "DURATION"
    elif issubclass(main, enum.Enum):
        return "|".join(member.value for member in main)
    elif name.endswith(("_bytes", "_bytes_max")):
        said = "BYTES"
    else:
        said = {int: "NUMBER", float: "NUMBER"}.get(main, "NAME")
    return f"{said}|{NONE}" if rest else said

"""Arguments and options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from smista.cli.completion import exchange_names, queue_names
from smista.cli.options import OptionGroup
from smista.command_line import duration, past_ms, switch

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)]
AnyQueue = Annotated[
    str | None,
    typer.Argument(metavar="QUEUE", help="Only those of this queue.", autocompletion=queue_names),
]
Exchange = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="The exchange; '' is the default one.", autocompletion=exchange_names)
]
Prefix = Annotated[
    str, typer.Argument(metavar="PREFIX", help="Only queues whose names start with this.", autocompletion=queue_names)
]
MessageIds = Annotated[list[str], typer.Argument(metavar="MESSAGE_ID", help="The messages' ids.")]
IsSure = Annotated[bool, switch("--yes", "-y", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="At most this many.")]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="A header; NAME:=JSON for one that is not text. Repeatable."
    ),
]


def named_values(written: Iterable[str] | None, option: str) -> dict[str, Any] | None:
    """Parse `NAME=VALUE` as text and `NAME:=JSON` as any value; None if there are none."""
    if not written:
        return None
    import msgspec

    values: dict[str, Any] = {}
    for one in written:
        name, equals, value = one.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE or NAME:=JSON.", param_hint=option)
        try:
            values[name] = msgspec.json.decode(value) if is_json else value
        except msgspec.DecodeError as error:
            raise typer.BadParameter(f"{value!r} is not JSON: {error}.", param_hint=option) from None
    return values


@dataclass(frozen=True, slots=True)
class Filters(OptionGroup):
    """Conditions that a message must meet; those not given do not restrict."""

    priority: Annotated[int | None, typer.Option(metavar="NUMBER", help="Only messages of this priority.")] = None
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only messages of this group.")] = None
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON", help="Only messages last dead-lettered for this reason, such as max_retries or rejected."
        ),
    ] = None
    source: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only messages last dead-lettered from this queue.")
    ] = None
    error_contains: Annotated[
        str | None, typer.Option("--error", metavar="WORDS", help="Only messages whose last error contains this.")
    ] = None
    created_from_ms: Annotated[
        int | None,
        typer.Option(
            "--since", parser=past_ms, metavar="INSTANT", help="Only messages published at that time or later."
        ),
    ] = None
    created_before_ms: Annotated[
        int | None,
        typer.Option("--until", parser=past_ms, metavar="INSTANT", help="Only messages published before that time."),
    ] = None
    deliveries_min: Annotated[
        int | None, typer.Option("--deliveries", metavar="COUNT", help="Only messages delivered at least this often.")
    ] = None
    headers: Headers = None

    def wanted(self) -> dict[str, Any]:
        """The filters by the client's names."""
        return asdict(self) | {"headers": named_values(self.headers, "--header")}


Bodies = Annotated[bool, typer.Option(help="Show the bodies.")]
State = Annotated[Literal["ready", "scheduled", "in_flight", "dead"] | None, typer.Option(help="Only in this state.")]
Lease = Annotated[
    int | None, duration("--lease", help="How long the messages are leased to you; default: the queue's lease.")
]
Delay = Annotated[int | None, duration("--delay", help="Delay before the message can be received.")]

"""Arguments and options that several commands have, and how what people write in them is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from smista.cli.completion import exchange_names, queue_names
from smista.cli.durations import duration_ms, past_ms
from smista.cli.options import OptionGroup

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)]
Exchange = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="The exchange; '' is the default one.", autocompletion=exchange_names)
]
MessageIds = Annotated[list[str], typer.Argument(metavar="MESSAGE_ID", help="The messages' ids.")]
IsSure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="At most this many.")]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="A header; NAME:=JSON for one that is not text. Repeatable."
    ),
]


def named_values(written: Iterable[str] | None, option: str) -> dict[str, Any] | None:
    """`NAME=VALUE` as text and `NAME:=JSON` as any value; None where nothing was written."""
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
    """What the messages wanted must be like; what is not given is left open."""

    priority: Annotated[int | None, typer.Option(metavar="NUMBER", help="Only of this priority.")] = None
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only of this group.")] = None
    reason: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Only those that last died of this, as max_retries or rejected."),
    ] = None
    source: Annotated[str | None, typer.Option(metavar="QUEUE", help="Only those that last died in this queue.")] = None
    error_contains: Annotated[
        str | None, typer.Option("--error", metavar="WORDS", help="Only those whose last error has this in it.")
    ] = None
    created_from: Annotated[
        int | None,
        typer.Option("--since", parser=past_ms, metavar="INSTANT", help="Only published then or later."),
    ] = None
    created_before: Annotated[
        int | None, typer.Option("--until", parser=past_ms, metavar="INSTANT", help="Only published before.")
    ] = None
    deliveries_min: Annotated[
        int | None, typer.Option("--deliveries", metavar="COUNT", help="Only delivered at least so often.")
    ] = None
    header: Headers = None

    def wanted(self) -> dict[str, Any]:
        """As the client takes them."""
        return {
            "priority": self.priority,
            "group": self.group,
            "reason": self.reason,
            "source": self.source,
            "error_contains": self.error_contains,
            "created_from_ms": self.created_from,
            "created_before_ms": self.created_before,
            "deliveries_min": self.deliveries_min,
            "headers": named_values(self.header, "--header"),
        }


Bodies = Annotated[bool, typer.Option(help="Show the bodies.")]
State = Annotated[Literal["ready", "scheduled", "in_flight", "dead"] | None, typer.Option(help="Only in this state.")]
Lease = Annotated[
    int | None,
    typer.Option(
        "--lease",
        parser=duration_ms,
        metavar="DURATION",
        help="How long you may hold them; as long as the queue says unless it is given.",
    ),
]
Delay = Annotated[
    int | None, typer.Option("--delay", parser=duration_ms, metavar="DURATION", help="Wait so long first.")
]

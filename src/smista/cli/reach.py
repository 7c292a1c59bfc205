"""The options `--url`, `--namespace` and `--json`, which may stand before the command's name or after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from smista.address import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from smista.command_line import switch

if TYPE_CHECKING:
    from smista.client import AsyncClient

RETRY_FOR_MS = 10_000
"""How long a command tries to reconnect. The first connection is tried once."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"The broker's address; default: the variable {ADDRESS_VARIABLE}, or {DEFAULT_ADDRESS}.",
    ),
]
Namespace = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="The namespace of the names.")]
AsJson = Annotated[bool, switch("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Reach:
    url: str | None = None
    namespace: str | None = None
    is_json: bool = False

    def under(self, context: typer.Context) -> Reach:
        """These options, completed by those given before the command's name."""
        outer = context.find_object(Reach) or Reach()
        return Reach(self.url or outer.url, self.namespace or outer.namespace, self.is_json or outer.is_json)

    def client(self) -> AsyncClient:
        """A client that is not connected yet."""
        from smista.client import AsyncClient
        from smista.errors import InvalidArgument, InvalidName

        try:
            return AsyncClient(self.address, namespace=self.namespace, retry_for_ms=RETRY_FOR_MS)
        except InvalidName as error:
            raise typer.BadParameter(str(error), param_hint="--namespace") from None
        except InvalidArgument as error:
            raise typer.BadParameter(str(error), param_hint="--url") from None

    @property
    def address(self) -> str:
        return self.url or DEFAULT_ADDRESS

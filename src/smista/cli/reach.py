"""Which broker a command speaks to, and how it answers: `--url`, `--namespace` and `--json`, which may stand before the
command's name or after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from smista.client import AsyncClient

URL_VARIABLE = "SMISTA_URL"
DEFAULT_URL = "http://127.0.0.1:9324"
RETRY_FOR_MS = 10_000
"""How long a command looks for a broker that it had found and lost. The first time, it looks once."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help=f"Where the broker is: {DEFAULT_URL} unless {URL_VARIABLE} says otherwise."
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="The namespace that the names are in.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Reach:
    url: str | None = None
    namespace: str | None = None
    is_json: bool = False

    def under(self, context: typer.Context) -> Reach:
        """This, and where it says nothing, what was said before the command's name."""
        said = context.find_object(Reach) or Reach()
        return Reach(self.url or said.url, self.namespace or said.namespace, self.is_json or said.is_json)

    def client(self) -> AsyncClient:
        """A client that is not connected yet."""
        from smista.client import AsyncClient
        from smista.core.errors import InvalidArgument, InvalidName

        try:
            return AsyncClient(self.address, namespace=self.namespace, retry_for_ms=RETRY_FOR_MS)
        except InvalidName as error:
            raise typer.BadParameter(str(error), param_hint="--namespace") from None
        except InvalidArgument as error:
            raise typer.BadParameter(str(error), param_hint="--url") from None

    @property
    def address(self) -> str:
        return self.url or DEFAULT_URL

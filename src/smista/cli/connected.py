"""Commands that need a running broker.

    @client_command(app)
    async def purge(client: AsyncClient, output: Output, queue: Queue) -> None:
        "Remove all messages of a queue."

registers `smista purge QUEUE [--url] [--namespace] [--json]`. The client is connected when the function is called and
closed after it; `app.run` turns its errors into a message and an exit code. `--url`, `--namespace` and `--json` may
also stand before the command's name. With a `GeneratedCommand` as `cls`, the third argument holds the generated options
that were given.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from smista.cli import interrupts
from smista.cli.generated import GeneratedCommand, given
from smista.cli.help import Command
from smista.cli.options import collected, expanded, parameters_of
from smista.cli.output import Output
from smista.cli.reach import AsJson, Namespace, Reach, Url
from smista.command_line import WrongUsage, as_command

Body = TypeVar("Body", bound=Callable[..., Awaitable[None]])

_COMMON = [
    inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
    inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, annotation=Url, default=None),
    inspect.Parameter("namespace", inspect.Parameter.KEYWORD_ONLY, annotation=Namespace, default=None),
    inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=AsJson, default=False),
]


def client_command(
    app: typer.Typer, name: str | None = None, *, cls: type[TyperCommand] | None = None, epilog: str | None = None
) -> Callable[[Body], Body]:
    """Register an async function as a command; see the module."""
    has_generated = cls is not None and issubclass(cls, GeneratedCommand)

    def register(body: Body) -> Body:
        own = parameters_of(body, skip=3 if has_generated else 2, names={"AsyncClient": Any})
        parameters, groups = expanded(own)

        def run(context: typer.Context, url: str | None, namespace: str | None, as_json: bool, **values: Any) -> None:
            if sys.stdout is None:
                # Closed by `>&-`. Refused before anything is done, since the result could not be printed.
                raise WrongUsage("Standard output is closed; to see nothing, write to /dev/null.")
            reach = Reach(url, namespace, as_json).under(context)
            first = [given(context)] if has_generated else []
            interrupts.run(_connected(body, reach, first, collected(groups, values)))

        as_command(run, [*parameters, *_COMMON], inspect.getdoc(body))
        app.command(name or body.__name__.replace("_", "-"), cls=cls or Command, epilog=epilog)(run)
        return body

    return register


async def _connected(
    body: Callable[..., Awaitable[None]], reach: Reach, first: list[Any], arguments: dict[str, Any]
) -> None:
    async with reach.client() as client:
        await body(client, Output(is_json=reach.is_json), *first, **arguments)

"""`smista worker module:app`: runs the consumers of a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from smista.cli.exits import WrongUsage
from smista.cli.reach import Reach

commands = typer.Typer()


@commands.command()
def worker(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the worker is: orders.py's app is orders:app.")
    ],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The broker, instead of the one the program names.")
    ] = None,
    is_reloaded: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file here changes.", show_default=False)
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least severe lines that are logged.")
    ] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines for people or for machines.")] = "text",
) -> None:
    """Run the consumers of a program until it is told to stop.

    Ctrl-C and SIGTERM let running handlers finish and give the rest back.
    """
    from smista.client.worker import load
    from smista.server.logs import configure

    reach = Reach(url).under(context)
    if reach.namespace is not None:
        raise WrongUsage("A worker's namespace is said in its program: Worker(namespace=...).")
    url = reach.url
    configure(log_level, log_format)
    if is_reloaded:
        from smista.client.reload import run

        again = [sys.executable, "-m", "smista", "worker", name, "--log-level", log_level, "--log-format", log_format]
        raise typer.Exit(run(again if url is None else [*again, "--url", url], [Path.cwd()]))
    found = load(name)
    if url is not None:
        found.address = url
    found.run()

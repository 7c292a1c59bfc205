"""`smista pipeline NAME`: the data pipelines on Spark, which are in `smista.spark.pipelines`.

Their modules are imported when this command is used, and PySpark when a pipeline is run.
"""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

import typer

from smista.cli.help import Command, Group

NAMES = ("archive", "metrics", "triage", "redrive", "replay", "load", "reconcile", "compact", "alerts")


class Pipelines(Group):
    """A group that makes its commands when they are first needed."""

    @property
    def commands(self) -> dict[str, Any]:
        return self._made

    @commands.setter
    def commands(self, given: object) -> None:
        assert not given, "typer has no commands of this group"

    @cached_property
    def _made(self) -> dict[str, Any]:
        from smista.spark.pipelines.command import command

        made = {}
        for name in NAMES:
            module = importlib.import_module(f"smista.spark.pipelines.{name}")
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name, cls=Command)(command(getattr(module, name)))
            made[name] = typer.main.get_command(alone)
        return made


commands = typer.Typer(
    cls=Pipelines, help="Data pipelines on Spark: archive the log, measure it, and move very many messages."
)

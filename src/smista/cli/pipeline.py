"""`smista pipeline NAME`: the data pipelines, on Spark. What they are and do is in `smista.spark.pipelines`."""

from __future__ import annotations

import importlib

import typer

commands = typer.Typer(help="Data pipelines on Spark: archive, metrics, triage, redrive, replay, load, ...")

NAMES = ("archive", "metrics", "triage", "redrive", "replay", "load", "reconcile", "compact", "alerts")


def add_all() -> None:
    """Make a command of each. Their modules load PySpark when they are run, not before."""
    from smista.spark.pipelines.command import command

    for name in NAMES:
        module = importlib.import_module(f"smista.spark.pipelines.{name}")
        commands.command(name)(command(getattr(module, name)))


add_all()

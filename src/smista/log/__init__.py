"""Ordered durable blocks: memory or SQLite. `interface.Log` says what each of them promises."""

from smista.log.interface import Log, LogLocation, LogView
from smista.log.memory import MemoryLog
from smista.log.sqlite import SqliteLog

__all__ = ["Log", "LogLocation", "LogView", "MemoryLog", "SqliteLog"]

"""BECAME_READY: scheduled messages whose time came."""

from smista.records import rows
from smista.records.kinds import Kind
from smista.records.sequences import FIELDS, HEAD, decode, listing

__all__ = ["FIELDS", "HEAD", "collect", "decode", "encode"]

encode, collect = listing(Kind.BECAME_READY, rows.READY)

"""ACKNOWLEDGED: messages of a queue were dealt with, and are gone."""

from smista.records import rows
from smista.records.kinds import Kind
from smista.records.sequences import FIELDS, HEAD, decode, listing

__all__ = ["FIELDS", "HEAD", "collect", "decode", "encode"]

encode, collect = listing(Kind.ACKNOWLEDGED, rows.ACKNOWLEDGED)

"""POLICY_DELETED: a policy was deleted."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class PolicyDeleted(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    name: str


encode, decode = codec(Kind.POLICY_DELETED, PolicyDeleted)

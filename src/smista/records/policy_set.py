"""POLICY_SET: a policy was set. The latest of its name counts."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class PolicySet(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    name: str
    pattern: str
    priority: int
    settings: dict[str, object]
    """Those that it names."""


encode, decode = codec(Kind.POLICY_SET, PolicySet)

"""The codec against any bytes."""

from __future__ import annotations

import contextlib

import msgspec

from smista.protocols.amqp import translation
from smista.protocols.amqp.wire import content, methods, replies, sasl
from smista.protocols.amqp.wire.values import Reader, SyntaxFault
from smista.service import properties


def check(data: bytes) -> None:
    """Every reader on the same bytes: it reads them or says why not, and what it read can be written and read again."""
    _check_method(data)
    _check_properties(data)
    for mechanism in ("PLAIN", "AMQPLAIN"):
        sasl.read_credentials(mechanism, data)
    with contextlib.suppress(SyntaxFault):
        Reader(data).table()
    with contextlib.suppress(SyntaxFault, replies.ConnectionClosing):
        content.read_head(data)


def _check_method(data: bytes) -> None:
    try:
        method = methods.read(data)
    except (SyntaxFault, KeyError):
        return
    again = methods.write(methods.read(methods.write(method)))
    assert again == methods.write(method)


def _check_properties(data: bytes) -> None:
    try:
        basic = content.read_properties(data)
    except SyntaxFault:
        return
    # Byte for byte what came, but for names of headers that stood twice.
    written = content.write_properties(basic)
    assert content.write_properties(content.read_properties(written)) == written
    # Other protocols can write what they see of it, and an AMQP consumer what it sees of that.
    seen = translation.as_properties(content.TAG + data)
    kept = properties.write(seen)
    msgspec.json.encode(seen)
    content.write_properties(translation.from_properties(properties.read(kept)))

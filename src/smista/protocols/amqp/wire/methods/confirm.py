"""The class confirm: a mode of a channel."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import Bit, Method, method


@method(85, 10)
class ConfirmSelect(Method):
    no_wait: Bit


@method(85, 11)
class ConfirmSelectOk(Method):
    pass

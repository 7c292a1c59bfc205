"""The class channel."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import Bit, LongString, Method, Short, ShortString, method


@method(20, 10)
class ChannelOpen(Method):
    out_of_band: ShortString = ""


@method(20, 11)
class ChannelOpenOk(Method):
    channel_id: LongString = b""


@method(20, 20)
class ChannelFlow(Method):
    active: Bit


@method(20, 21)
class ChannelFlowOk(Method):
    active: Bit


@method(20, 40)
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@method(20, 41)
class ChannelCloseOk(Method):
    pass

"""A WebSocket without I/O: bytes in, messages out; messages in, bytes out. On the protocol of `websockets`.

    CONNECTING ──handshake, accept──▶ OPEN ──close, fail, the peer's close──▶ CLOSED

Beyond what that does: messages are put together from their fragments, of which there may be so many; a text is UTF-8 or
none; what has come and is no message yet is counted. Frames are not compressed, and not logged either: at level debug
`websockets` logs what is in them.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from msgspec.structs import replace
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from smista.server.http.refusals import NO_HANDSHAKE, Refusal
from smista.server.http.responses import Headers

FRAGMENTS_MAX = 10_000
"""Empty fragments count nothing against the size of a message, and each takes memory."""
FRAGMENT_BYTES = 64
"""What a fragment takes in memory beside its bytes."""
FRAME_HEAD_BYTES_MAX = 14
WHY_MAX = 200
MASK_BYTES = 4

_logger = logging.getLogger("smista.websocket")
_logger.setLevel(logging.WARNING)


class Pong(NamedTuple):
    payload: bytes


class Closed(NamedTuple):
    """It is over: nothing comes after this, and nothing more is to be received."""

    code: int
    reason: str
    is_failure: bool
    """Whether we were the ones who found fault."""


Event = str | bytes | Pong | Closed
"""`str` and `bytes` are messages."""


class WebSocket:
    def __init__(self, message_bytes_max: int) -> None:
        self._protocol = ServerProtocol(max_size=message_bytes_max, logger=_logger)
        self._response: Response
        """To a handshake that can be accepted."""
        self._has_closed = False
        """Whether it was we who closed."""
        self.step = 0
        """Grows whenever a message begins that comes in fragments, and whenever something is whole."""
        self._partial = PartialFrame()
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0
        self._is_text = False

    def forget(self) -> None:
        """It will not be used any more. Its protocol is of objects that hold each other."""
        vars(self._protocol).clear()
        self._partial = PartialFrame()
        self._fragments = []
        self._fragment_bytes = 0

    @property
    def come_bytes(self) -> int:
        """How much has come that is no message yet."""
        return self._partial.bytes + self._fragment_bytes

    @property
    def kept_bytes(self) -> int:
        """What that takes in memory. A message that has begun always takes some."""
        return self.come_bytes + FRAGMENT_BYTES * len(self._fragments)

    @property
    def plain_bytes(self) -> int:
        """How much of what comes next belongs to the frame that has begun."""
        return self._partial.payload_bytes_left

    # -- the handshake ------------------------------------------------------------------------------------------------

    def handshake(self, head: bytes) -> Refusal | None:
        """Read the opening request; why it is refused, if it is."""
        protocol = self._protocol
        protocol.receive_data(head)
        requests = [event for event in protocol.events_received() if isinstance(event, Request)]
        if not requests:
            return NO_HANDSHAKE
        response = self._response = protocol.accept(requests[0])
        if response.status_code == 101:
            return None
        why = response.body.decode().partition("\n")[0]
        return replace(NO_HANDSHAKE, why=why if len(why) <= WHY_MAX else f"{why[:WHY_MAX]}...")

    def accept(self, subprotocol: str | None, headers: Headers) -> None:
        """Answer it; from here on messages may be sent."""
        response = self._response
        del response.headers["Date"]
        response.headers.update([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        if subprotocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = subprotocol
        self._protocol.send_response(response)

    # -- what comes ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """The events in `data`, together with what came before it. What has to be sent for it is in `output`."""
        protocol = self._protocol
        self._partial.advance(data)
        protocol.receive_data(data)
        events: list[Event] = []
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            event = self._read(frame)
            if event is not None:
                events.append(event)
                if type(event) is Closed:
                    return events
        if protocol.close_expected() and not self._has_closed:
            events.append(self._found_fault())
        return events

    def _read(self, frame: Frame) -> Event | None:
        was_whole = not self._fragments
        event = self._put_together(frame)
        if was_whole or not self._fragments:
            self.step += 1
        return event

    def _put_together(self, frame: Frame) -> Event | None:
        opcode = frame.opcode
        if opcode is Opcode.PING:
            return None  # the answer is in the output
        payload = bytes(frame.data)
        if opcode is Opcode.PONG:
            return Pong(payload)
        if opcode is Opcode.CLOSE:
            code = int.from_bytes(payload[:2], "big") or CloseCode.NO_STATUS_RCVD
            return Closed(code, payload[2:].decode(), is_failure=False)
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
            if frame.fin:
                return self._message(payload)
        if len(self._fragments) >= FRAGMENTS_MAX:
            return self.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {FRAGMENTS_MAX} fragments")
        self._fragments.append(payload)
        self._fragment_bytes += len(payload)
        if not frame.fin:
            return None
        payload = b"".join(self._fragments)
        self._fragments = []
        self._fragment_bytes = 0
        return self._message(payload)

    def _message(self, payload: bytes) -> Event:
        if not self._is_text:
            return payload
        try:
            return payload.decode()
        except UnicodeDecodeError:
            return self.fail(CloseCode.INVALID_DATA, "text that is not UTF-8")

    def fail(self, code: int, reason: str) -> Closed:
        """Close it for a fault of the peer's, or of ours."""
        if self._protocol.close_expected() and not self._has_closed:
            # What came behind the fault has been read already, and found wrong by itself.
            return self._found_fault()
        self._has_closed = True
        self._protocol.fail(code, reason)
        return Closed(code, reason, is_failure=True)

    def _found_fault(self) -> Closed:
        """What the protocol has found wrong with a frame is in the close frame that it made."""
        self._protocol.receive_eof()
        sent = self._protocol.close_exc.sent
        assert sent is not None
        return Closed(sent.code, sent.reason, is_failure=True)

    # -- what goes ----------------------------------------------------------------------------------------------------

    def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)

    def ping(self, payload: bytes) -> None:
        self._protocol.send_ping(payload)

    def close(self, code: int, reason: str) -> None:
        self._has_closed = True
        self._protocol.send_close(code, reason)

    def output(self) -> bytes:
        """What is to be sent now."""
        pieces = self._protocol.data_to_send()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class PartialFrame:
    """How much of a frame that is not whole has come."""

    __slots__ = ("_head", "bytes", "payload_bytes_left")

    def __init__(self) -> None:
        self.bytes = 0
        self._head = b""
        """Of a frame whose head is not whole."""
        self.payload_bytes_left = 0
        """Of a frame whose head is."""

    def advance(self, data: bytes) -> None:
        at = 0
        while True:
            left = self.payload_bytes_left
            if left > len(data) - at:
                self.payload_bytes_left -= len(data) - at
                self.bytes += len(data) - at
                return
            at += left
            head = self._head + data[at : at + FRAME_HEAD_BYTES_MAX]
            head_bytes = 2 if len(head) < 2 else 2 + _LENGTH_BYTES.get(head[1] & 127, 0) + (head[1] >> 7) * MASK_BYTES
            if len(head) < head_bytes:
                self._head = head
                self.payload_bytes_left = 0
                self.bytes = len(head)
                return
            at += head_bytes - len(self._head)
            self._head = b""
            length_bytes = _LENGTH_BYTES.get(head[1] & 127, 0)
            self.payload_bytes_left = (
                int.from_bytes(head[2 : 2 + length_bytes], "big") if length_bytes else head[1] & 127
            )
            self.bytes = head_bytes


_LENGTH_BYTES = {126: 2, 127: 8}

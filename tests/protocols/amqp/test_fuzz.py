"""Anything at all for the codec and for a live server: nobody else notices.

The seed of a failing session is in its message; SMISTA_LONG=1 takes other seeds, and more time.
"""

from __future__ import annotations

import os
import platform
import random
import re
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from smista.protocols.amqp.wire import methods, replies, values
from smista.protocols.amqp.wire.frames import METHOD
from smista.protocols.amqp.wire.methods import METHODS
from tests.protocols.amqp import fuzz_codec
from tests.protocols.amqp.raw import (
    CLOSE,
    CLOSE_CHANNEL,
    HELLO,
    OPEN,
    OPEN_CHANNEL,
    Raw,
    declare,
    frame,
    head,
    message,
    on,
    part,
    publish,
    start_ok,
    tune_ok,
)
from tests.protocols.amqp.test_codec import ALL_TRANSCRIPT, TRANSCRIPTS, TYPES, octets
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually

IS_LONG = bool(os.environ.get("SMISTA_LONG"))
LIVE_S = 600.0 if IS_LONG else 4.0
EXAMPLES = 20_000 if IS_LONG else 300
HAS_ATHERIS = (sys.platform, platform.machine()) == ("linux", "x86_64") and sys.version_info < (3, 14)

# -- the codec --------------------------------------------------------------------------------------------------------

SEEDS = [octets(transcript) for _, transcript in TRANSCRIPTS]
SEEDS.append(octets(ALL_TRANSCRIPT))
_ENTRIES = b"".join(b"\x02%02d" % place + octets(written) for place, (_, written, _) in enumerate(TYPES))
SEEDS.append(b"\x20\x00" + values.long_string(_ENTRIES))
SEEDS.append(values.long_string(_ENTRIES))


@given(some.binary(max_size=2000))
@example(b"\x20\x00\x00\x00\x00\x06\x01\xffx\x00\x00\x00\x00")
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    fuzz_codec.check(data)


@given(some.sampled_from(sorted(METHODS)), some.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_arguments_of_any_method_are_read_or_refused(index: tuple[int, int], data: bytes) -> None:
    fuzz_codec.check(struct.pack(">HH", *index) + data)


@given(some.integers(0, 0xFFFF), some.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_properties_are_read_or_refused(flags: int, data: bytes) -> None:
    fuzz_codec.check(struct.pack(">H", flags) + data)


@given(some.randoms(use_true_random=False))
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_was_well_formed_and_is_not_any_more_is_read_or_refused(chance: random.Random) -> None:
    fuzz_codec.check(_mutated(chance.choice(SEEDS), chance))


def test_reading_takes_memory_by_what_is_there_and_keeps_none() -> None:
    chance = random.Random(1)
    inputs = [_mutated(chance.choice(SEEDS), chance) for _ in range(1000)]
    # Every length says four gigabytes.
    inputs += [data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :] for data in SEEDS for place in range(len(data))]
    for data in inputs:
        fuzz_codec.check(data)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for data in inputs:
            fuzz_codec.check(data)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 1 << 20
    assert now - before < 1 << 18


@pytest.mark.slow
@pytest.mark.skipif(not HAS_ATHERIS, reason="there is no wheel of atheris for this platform")
def test_atheris_finds_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS):
        (corpus / f"{number}").write_bytes(seed)
    options = [f"-max_total_time={600 if IS_LONG else 3}", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, "-m", "tests.protocols.amqp.fuzz_atheris", *options, str(corpus)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    executed = re.search(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert executed is not None, done.stderr
    assert int(executed[1]) > 1000


# -- a live server ----------------------------------------------------------------------------------------------------

QUEUE = "fuzzed"
SESSION = [
    start_ok(),
    tune_ok(),
    OPEN,
    OPEN_CHANNEL,
    on(2, methods.ChannelOpen()),
    on(1, declare(QUEUE)),
    on(
        1,
        methods.ExchangeDeclare(
            0, "x", "topic", False, False, True, False, False, {"alternate-exchange": "amq.fanout"}
        ),
    ),
    on(1, methods.QueueBind(0, QUEUE, "x", "a.*.#", False, {})),
    on(1, methods.QueueBind(0, QUEUE, "amq.headers", "", False, {"x-match": "any", "k": 1})),
    on(1, methods.ExchangeBind(0, "amq.fanout", "x", "#", False, {})),
    on(2, methods.QueueDeclare(0, "", False, False, True, True, False, {"x-message-ttl": 1000, "x-max-length": 3})),
    on(2, methods.ConfirmSelect(False)),
    on(1, methods.BasicQos(0, 3, False)),
    on(1, methods.BasicConsume(0, QUEUE, "me", False, False, False, False, {"x-priority": 2})),
    on(2, methods.BasicConsume(0, "amq.rabbitmq.reply-to", "replies", False, True, False, False, {})),
    message(b"body", QUEUE, channel=2),
    message(b"", "a.b", "x", channel=2, properties=octets(ALL_TRANSCRIPT)),
    message(b"b", "", "amq.headers", channel=2, properties=b"\x20\x00" + values.long_string(_ENTRIES)),
    publish(QUEUE) + head(5) + part(b"ab") + part(b"") + part(b"cde"),
    message(b"r", "amq.rabbitmq.reply-to.nobody", channel=1, properties=b"\x02\x00\x15amq.rabbitmq.reply-to"),
    on(1, methods.BasicAck(1, False), methods.BasicNack(2, False, True), methods.BasicReject(3, True)),
    on(1, methods.BasicAck(0, True)),
    on(2, methods.BasicGet(0, QUEUE, False), methods.BasicGet(0, QUEUE, True)),
    on(1, methods.BasicRecover(True), methods.BasicCancel("me", False)),
    on(1, methods.TxSelect()),
    message(b"t", QUEUE),
    on(1, methods.TxCommit(), methods.TxRollback()),
    on(1, methods.QueuePurge(0, QUEUE, False), methods.QueueUnbind(0, QUEUE, "x", "a.*.#", {})),
    on(1, methods.ExchangeUnbind(0, "amq.fanout", "x", "#", False, {}), methods.ExchangeDelete(0, "x", False, False)),
    on(1, methods.ChannelFlow(True)),
    on(0, methods.ConnectionUpdateSecret(b"s", "r")),
    frame(8, 0, b""),
    on(1, methods.QueueDelete(0, QUEUE, False, False, False)),
    on(1, CLOSE_CHANNEL),
    on(0, CLOSE),
]
STRANGE = [frame(METHOD, channel, octets(transcript)) for _, transcript in TRANSCRIPTS for channel in (0, 1, 3)]


class Healthy:
    """A connection that publishes and consumes all the time, and sees every message once, in order."""

    def __init__(self, server: Served) -> None:
        self.raw = Raw(server.amqp_address).open()
        self.raw.call(declare("healthy"), methods.QueueDeclareOk)
        self.raw.call(methods.BasicConsume(0, "healthy", "me", False, False, False, False, {}), methods.BasicConsumeOk)
        self.count = 0
        self.error: Exception | None = None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                self.count += 1
                self.raw.send(message(b"%d" % self.count, "healthy"))
                delivered, body = self.raw.delivery()
                assert (delivered.delivery_tag, body) == (self.count, b"%d" % self.count)
                self.raw.send(on(1, methods.BasicAck(self.count, False)))
        except Exception as error:
            self.error = error

    def stop(self) -> int:
        self._is_stopped.set()
        self._thread.join(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.raw.close()
        return self.count


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    # The log is in memory too: keep of it only what is needed, so that memory can be looked at.
    flags = ("--log-retention-bytes", "0", "--log-retention-ms", "0", "--log-slack-bytes", "100000")
    with ServerProcess(None, *flags) as server:
        healthy = Healthy(server)
        yield server
        assert healthy.stop() > 10
    wrong = [line for line in server.lines if "Traceback" in line or " ERROR " in line or " CRITICAL " in line]
    assert wrong == []


@pytest.mark.slow
def test_a_session_that_goes_wrong_ends_alone_and_properly(server: ServerProcess) -> None:
    _settle_after(server, [HELLO + b"".join(SESSION)] * 20)
    before = _resident_bytes(server), _open_files(server)
    seed = random.randrange(1 << 30) if IS_LONG else 1
    end_s = time.monotonic() + LIVE_S
    while time.monotonic() < end_s:
        seed += 1
        chance = random.Random(seed)
        sent = _wrong_session(chance)
        try:
            _settle_after(server, [sent])
        except Exception as error:
            error.add_note(f"with seed {seed}")
            raise
    _settle_after(server, [HELLO + b"".join(SESSION)] * 20)
    assert _resident_bytes(server) - before[0] < 64 << 20
    eventually(lambda: _open_files(server) <= before[1])  # a connection is closed a moment after its last frame


def _settle_after(server: Served, sessions: list[bytes]) -> None:
    for sent in sessions:
        with Raw(server.amqp_address) as raw:
            reading = threading.Thread(target=_send, args=(raw, sent))
            reading.start()
            try:
                _check_answers(raw, sent)
            finally:
                reading.join()


def _send(raw: Raw, sent: bytes) -> None:
    """All of it, and the end; the server may have ended it before."""
    try:
        raw.send(sent)
        raw.socket.shutdown(1)
    except OSError:
        pass


def _check_answers(raw: Raw, sent: bytes) -> None:
    """What comes is well formed to the end; an error is answered by a close, and nothing follows that but the answer to
    a close of the client's that crossed it."""
    if not sent.startswith(HELLO):
        _check_other_protocol(raw)
        return
    is_closed = False
    try:
        while True:
            kind, number, payload = raw.frame()
            assert not is_closed or isinstance(methods.read(payload), methods.ConnectionCloseOk)
            if kind == METHOD:
                method = methods.read(payload)
                if isinstance(method, (methods.ConnectionClose, methods.ChannelClose)):
                    assert method.reply_text.startswith(replies.NAMES[method.reply_code])
                    # 541 would be a fault of ours.
                    assert method.reply_code != replies.INTERNAL_ERROR
                    is_closed = number == 0
    except EOFError:
        pass


def _check_other_protocol(raw: Raw) -> None:
    try:
        assert raw.take(8) == HELLO
        assert raw.is_over()
    except EOFError:
        pass


def _wrong_session(chance: random.Random) -> bytes:
    """A session in which something is wrong: frames in another order, too many, too few, or bytes that are others."""
    sent = list(SESSION)
    if chance.random() < 0.5:
        # Beyond the handshake, so that it gets somewhere.
        first, sent = sent[:5], sent[5:]
    else:
        first = []
    for _ in range(chance.randint(1, 4)):
        sent = chance.choice(_REORDERINGS)(sent, chance)
    data = b"".join(first + sent)
    start = len(b"".join(first))
    if chance.random() < 0.7:
        data = data[:start] + _mutated(data[start:], chance)
    return (HELLO if chance.random() < 0.95 else _mutated(HELLO, chance)) + data


def _leave_out(sent: list[bytes], chance: random.Random) -> list[bytes]:
    return [each for each in sent if chance.random() < 0.8]


def _swap(sent: list[bytes], chance: random.Random) -> list[bytes]:
    sent = list(sent)
    for _ in range(min(3, len(sent))):
        a, b = chance.randrange(len(sent)), chance.randrange(len(sent))
        sent[a], sent[b] = sent[b], sent[a]
    return sent


def _put_in(sent: list[bytes], chance: random.Random) -> list[bytes]:
    sent = list(sent)
    for _ in range(chance.randint(1, 3)):
        sent.insert(chance.randint(0, len(sent)), chance.choice(STRANGE))
    return sent


def _change_one(sent: list[bytes], chance: random.Random) -> list[bytes]:
    """A frame whose payload is another, with a size and an end that are right."""
    sent = list(sent)
    if sent:
        place = chance.randrange(len(sent))
        kind, number, _ = struct.unpack_from(">BHI", sent[place])
        sent[place] = frame(kind, number, _mutated(sent[place][7:-1], chance)[:4000])
    return sent


def _twice(sent: list[bytes], chance: random.Random) -> list[bytes]:
    place = chance.randint(0, len(sent))
    return sent[:place] + sent[place // 2 :]


_REORDERINGS: list[Callable[[list[bytes], random.Random], list[bytes]]] = [
    _leave_out,
    _swap,
    _put_in,
    _change_one,
    _change_one,
    _twice,
]


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(changed))
        match chance.randrange(6):
            case 0:
                changed[place : place + 1] = bytes((chance.randrange(256),))
            case 1:
                changed[place : place + chance.randint(1, 8)] = b""
            case 2:
                changed[place:place] = chance.randbytes(chance.randint(1, 8))
            case 3:
                changed[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
            case 4:
                changed[place:place] = changed[place : place + chance.randint(1, 40)]
            case _:
                del changed[place:]
    return bytes(changed)


def _resident_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


def _open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))

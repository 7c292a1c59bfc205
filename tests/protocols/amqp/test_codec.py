"""The codec against transcripts: bytes written by hand, and the codecs of pamqp and pika as second opinions.

In a transcript, hexadecimal digits are bytes and what stands in quotes is ASCII: `05'guest'` is a short string.
"""

from __future__ import annotations

import importlib
import math
import struct
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pamqp import base, commands, decode, encode
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header

from smista.protocols.amqp import translation, users
from smista.protocols.amqp.wire import content, frames, methods, replies, sasl, values
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.methods import METHODS, Method
from smista.protocols.amqp.wire.values import (
    DEPTH_MAX,
    VALUES_MAX,
    LongInteger,
    Octets,
    Reader,
    SyntaxFault,
    Timestamp,
    TooManyValues,
)
from smista.service import properties
from smista.service.properties import Properties

# It has no types of its own.
pika_spec: Any = importlib.import_module("pika.spec")


def octets(transcript: str) -> bytes:
    pieces = transcript.split("'")
    return b"".join(piece.encode() if place % 2 else bytes.fromhex(piece) for place, piece in enumerate(pieces))


# -- methods ----------------------------------------------------------------------------------------------------------

TABLE = {"k": True}
"""Nine bytes with its length: 00000004 01'k' 74 01."""
TAG = 0x0102030405060708

TRANSCRIPTS: list[tuple[Method, str]] = [
    (
        methods.ConnectionStart(0, 9, TABLE, b"PLAIN AMQPLAIN", b"en_US"),
        "000a 000a 00 09 00000004 01'k' 74 01 0000000e 'PLAIN AMQPLAIN' 00000005 'en_US'",
    ),
    (
        methods.ConnectionStartOk(TABLE, "PLAIN", b"\0guest\0guest", "en_US"),
        "000a 000b 00000004 01'k' 74 01 05'PLAIN' 0000000c 00'guest'00'guest' 05'en_US'",
    ),
    (methods.ConnectionSecure(b"who?"), "000a 0014 00000004 'who?'"),
    (methods.ConnectionSecureOk(b"me"), "000a 0015 00000002 'me'"),
    (methods.ConnectionTune(2047, 131_072, 60), "000a 001e 07ff 00020000 003c"),
    (methods.ConnectionTuneOk(1, 4096, 0), "000a 001f 0001 00001000 0000"),
    (methods.ConnectionOpen("/", "", False), "000a 0028 01'/' 00 00"),
    (methods.ConnectionOpenOk(""), "000a 0029 00"),
    (methods.ConnectionClose(320, "CONNECTION_FORCED", 60, 40), "000a 0032 0140 11'CONNECTION_FORCED' 003c 0028"),
    (methods.ConnectionCloseOk(), "000a 0033"),
    (methods.ConnectionBlocked("low on disk"), "000a 003c 0b'low on disk'"),
    (methods.ConnectionUnblocked(), "000a 003d"),
    (methods.ConnectionUpdateSecret(b"new", "old"), "000a 0046 00000003 'new' 03'old'"),
    (methods.ConnectionUpdateSecretOk(), "000a 0047"),
    (methods.ChannelOpen(""), "0014 000a 00"),
    (methods.ChannelOpenOk(b""), "0014 000b 00000000"),
    (methods.ChannelFlow(True), "0014 0014 01"),
    (methods.ChannelFlowOk(False), "0014 0015 00"),
    (methods.ChannelClose(404, "NOT_FOUND", 50, 10), "0014 0028 0194 09'NOT_FOUND' 0032 000a"),
    (methods.ChannelCloseOk(), "0014 0029"),
    (
        methods.ExchangeDeclare(0, "x", "topic", False, True, False, True, False, TABLE),
        "0028 000a 0000 01'x' 05'topic' 0a 00000004 01'k' 74 01",
    ),
    (methods.ExchangeDeclareOk(), "0028 000b"),
    (methods.ExchangeDelete(0, "x", True, False), "0028 0014 0000 01'x' 01"),
    (methods.ExchangeDeleteOk(), "0028 0015"),
    (
        methods.ExchangeBind(0, "to", "from", "key", True, TABLE),
        "0028 001e 0000 02'to' 04'from' 03'key' 01 00000004 01'k' 74 01",
    ),
    (methods.ExchangeBindOk(), "0028 001f"),
    (
        methods.ExchangeUnbind(0, "to", "from", "key", False, TABLE),
        "0028 0028 0000 02'to' 04'from' 03'key' 00 00000004 01'k' 74 01",
    ),
    (methods.ExchangeUnbindOk(), "0028 0033"),
    (
        methods.QueueDeclare(0, "orders", False, True, False, True, True, TABLE),
        "0032 000a 0000 06'orders' 1a 00000004 01'k' 74 01",
    ),
    (methods.QueueDeclareOk("orders", 258, 3), "0032 000b 06'orders' 00000102 00000003"),
    (
        methods.QueueBind(0, "orders", "x", "key", False, TABLE),
        "0032 0014 0000 06'orders' 01'x' 03'key' 00 00000004 01'k' 74 01",
    ),
    (methods.QueueBindOk(), "0032 0015"),
    (methods.QueuePurge(0, "orders", True), "0032 001e 0000 06'orders' 01"),
    (methods.QueuePurgeOk(7), "0032 001f 00000007"),
    (methods.QueueDelete(0, "orders", False, True, True), "0032 0028 0000 06'orders' 06"),
    (methods.QueueDeleteOk(7), "0032 0029 00000007"),
    (
        methods.QueueUnbind(0, "orders", "x", "key", TABLE),
        "0032 0032 0000 06'orders' 01'x' 03'key' 00000004 01'k' 74 01",
    ),
    (methods.QueueUnbindOk(), "0032 0033"),
    (methods.BasicQos(0, 2000, True), "003c 000a 00000000 07d0 01"),
    (methods.BasicQosOk(), "003c 000b"),
    (
        methods.BasicConsume(0, "orders", "me", False, True, False, True, TABLE),
        "003c 0014 0000 06'orders' 02'me' 0a 00000004 01'k' 74 01",
    ),
    (methods.BasicConsumeOk("me"), "003c 0015 02'me'"),
    (methods.BasicCancel("me", True), "003c 001e 02'me' 01"),
    (methods.BasicCancelOk("me"), "003c 001f 02'me'"),
    (methods.BasicPublish(0, "x", "key", True, False), "003c 0028 0000 01'x' 03'key' 01"),
    (methods.BasicReturn(312, "NO_ROUTE", "x", "key"), "003c 0032 0138 08'NO_ROUTE' 01'x' 03'key'"),
    (methods.BasicDeliver("me", TAG, True, "x", "key"), "003c 003c 02'me' 0102030405060708 01 01'x' 03'key'"),
    (methods.BasicGet(0, "orders", True), "003c 0046 0000 06'orders' 01"),
    (methods.BasicGetOk(TAG, False, "x", "key", 9), "003c 0047 0102030405060708 00 01'x' 03'key' 00000009"),
    (methods.BasicGetEmpty(""), "003c 0048 00"),
    (methods.BasicAck(TAG, True), "003c 0050 0102030405060708 01"),
    (methods.BasicReject(TAG, False), "003c 005a 0102030405060708 00"),
    (methods.BasicRecoverAsync(True), "003c 0064 01"),
    (methods.BasicRecover(True), "003c 006e 01"),
    (methods.BasicRecoverOk(), "003c 006f"),
    (methods.BasicNack(TAG, False, True), "003c 0078 0102030405060708 02"),
    (methods.ConfirmSelect(True), "0055 000a 01"),
    (methods.ConfirmSelectOk(), "0055 000b"),
    (methods.TxSelect(), "005a 000a"),
    (methods.TxSelectOk(), "005a 000b"),
    (methods.TxCommit(), "005a 0014"),
    (methods.TxCommitOk(), "005a 0015"),
    (methods.TxRollback(), "005a 001e"),
    (methods.TxRollbackOk(), "005a 001f"),
]
NAMED = [pytest.param(*each, id=type(each[0]).__name__) for each in TRANSCRIPTS]


def test_there_is_a_transcript_of_every_method() -> None:
    assert {type(method) for method, _ in TRANSCRIPTS} == set(METHODS.values())


def test_every_method_that_pamqp_and_pika_know_is_known() -> None:
    # 30 is the class `access`, which 0-9-1 has no more.
    known = {number for number in (*commands.INDEX_MAPPING, *pika_spec.methods) if number >> 16 != 30}
    assert {(number >> 16, number & 0xFFFF) for number in known} == set(METHODS)


@pytest.mark.parametrize(("method", "transcript"), NAMED)
def test_a_method_is_written_as_its_transcript(method: Method, transcript: str) -> None:
    assert methods.write(method) == octets(transcript)


@pytest.mark.parametrize(("method", "transcript"), NAMED)
def test_a_method_is_read_from_its_transcript(method: Method, transcript: str) -> None:
    assert methods.read(octets(transcript)) == method


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("method", "transcript"), NAMED)
def test_pamqp_reads_the_same_and_writes_it_back(method: Method, transcript: str) -> None:
    data = frames.frame(frames.METHOD, 1, octets(transcript))
    size, channel, theirs = pamqp_frame.unmarshal(data)
    assert isinstance(theirs, base.Frame)
    assert (size, channel, theirs.index) == (len(data), 1, method.INDEX[0] << 16 | method.INDEX[1])
    ours = [getattr(method, name) for name, _ in method.FIELDS]
    assert [_as_pamqp(value) for value in ours] == [value for _, value in theirs]
    if not isinstance(method, (methods.ChannelOpen, methods.ChannelOpenOk)):
        # Of these it does not write what it has read.
        assert pamqp_frame.marshal(theirs, 1) == data


@pytest.mark.parametrize(("method", "transcript"), NAMED)
def test_pika_reads_the_same_and_writes_it_back(method: Method, transcript: str) -> None:
    data = octets(transcript)
    kind = pika_spec.methods[method.INDEX[0] << 16 | method.INDEX[1]]
    if isinstance(method, methods.ConnectionUpdateSecret):
        # Its decoder is broken in pika 1.4; no client needs it.
        theirs = kind(method.new_secret, method.reason)
    else:
        theirs = kind()
        theirs.decode(data, 4)
    assert data[:4] + b"".join(theirs.encode()) == data


@pytest.mark.parametrize(("method", "transcript"), NAMED)
def test_a_method_that_is_cut_short_or_goes_on_is_a_fault(method: Method, transcript: str) -> None:
    data = octets(transcript)
    for size in range(4, len(data)):
        with pytest.raises(SyntaxFault):
            methods.read(data[:size])
    with pytest.raises(SyntaxFault):
        methods.read(data + b"\0")


@pytest.mark.parametrize("transcript", ["", "00", "003c", "003c 00"])
def test_half_an_index_is_a_fault(transcript: str) -> None:
    with pytest.raises(SyntaxFault):
        methods.read(octets(transcript))


@pytest.mark.parametrize("transcript", ["003c 0063", "0000 0000", "001e 000a", "ffff ffff 00"])
def test_a_method_that_nobody_knows_is_a_key_error(transcript: str) -> None:
    with pytest.raises(KeyError):
        methods.read(octets(transcript))


def test_bits_share_an_octet_from_the_lowest_up() -> None:
    for place in range(5):
        a, b, c, d, e = [each == place for each in range(5)]
        method = methods.QueueDeclare(0, "q", a, b, c, d, e, {})
        data = methods.write(method)
        assert data[8] == 1 << place
        assert methods.read(data) == method


def test_bits_that_mean_nothing_are_ignored() -> None:
    assert methods.read(octets("003c 0050 0000000000000001 fe")) == methods.BasicAck(1, False)


def test_a_name_that_is_not_text_is_a_fault_as_rabbitmq_says_it() -> None:
    with pytest.raises(SyntaxFault, match=r"^Malformed UTF-8 in shortstr$"):
        methods.read(octets("003c 0046 0000 02fffe 00"))


def test_a_routing_key_need_not_be_text() -> None:
    data = octets("003c 0028 0000 00 02fffe 00")
    method = methods.read(data)
    assert isinstance(method, methods.BasicPublish)
    assert methods.write(method) == data


def test_names_of_255_bytes_are_the_longest() -> None:
    for name in ("n" * 255, "ñ" * 127):
        assert methods.read(methods.write(methods.BasicGet(0, name, False))) == methods.BasicGet(0, name, False)
    with pytest.raises(ValueError, match="256 bytes"):
        methods.write(methods.BasicGet(0, "ñ" * 128, False))


def _as_pamqp(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


_STRATEGIES: dict[str, some.SearchStrategy[Any]] = {
    "octet": some.integers(0, 0xFF),
    "short": some.integers(0, 0xFFFF),
    "long": some.integers(0, 0xFFFF_FFFF),
    "long_long": some.integers(0, 0xFFFF_FFFF_FFFF_FFFF),
    "long_string": some.binary(max_size=300),
    "bit": some.booleans(),
    "name": some.text(max_size=60),
    "short_string": some.text(max_size=60),
}

# -- tables -----------------------------------------------------------------------------------------------------------

# type as RabbitMQ reads it, what stands on the wire, what it is here
TYPES: list[tuple[str, str, object]] = [
    ("t: false", "74 00", False),
    ("t: true", "74 01", True),
    ("b: signed 8 bit", "62 ff", -1),
    ("B: unsigned 8 bit", "42 ff", 255),
    ("s: signed 16 bit", "73 fffe", -2),
    ("u: unsigned 16 bit", "75 fffe", 65534),
    ("I: signed 32 bit", "49 fffffffd", -3),
    ("i: unsigned 32 bit", "69 fffffffd", 4294967293),
    ("l: signed 64 bit", "6c fffffffffffffffc", -4),
    ("L: signed 64 bit", "4c fffffffffffffffb", -5),
    ("f: 32 bit", "66 3fc00000", 1.5),
    ("d: 64 bit", "64 3ff8000000000000", 1.5),
    ("D: decimal", "44 02 000004d2", Decimal("12.34")),
    ("D: negative decimal", "44 01 fffffff6", Decimal("-1.0")),
    ("S: text", "53 00000003 'abc'", "abc"),
    ("S: empty", "53 00000000", ""),
    ("S: bytes that are no text", "53 00000002 fffe", b"\xff\xfe"),
    ("x: bytes", "78 00000003 'abc'", Octets(b"abc")),
    ("T: timestamp", "54 0000000060000000", Timestamp(0x60000000)),
    ("T: the last timestamp", "54 ffffffffffffffff", Timestamp(0xFFFF_FFFF_FFFF_FFFF)),
    ("V: nothing", "56", None),
    ("A: empty", "41 00000000", []),
    ("A: values", "41 0000000b 62 01 74 01 53 00000002 'ab'", [1, True, "ab"]),
    ("F: empty", "46 00000000", {}),
    ("F: values", "46 00000010 01'a' 49 00000001 01'b' 46 00000002 00 56", {"a": 1, "b": {"": None}}),
]
NAMED_TYPES = [pytest.param(written, value, id=name) for name, written, value in TYPES]


@pytest.mark.parametrize(("written", "value"), NAMED_TYPES)
def test_a_value_is_read_as_rabbitmq_reads_it(written: str, value: object) -> None:
    entry = octets("01'k'") + octets(written)
    read = Reader(struct.pack(">I", len(entry)) + entry).table()
    assert read == {"k": value}
    assert isinstance(value, dict) or type(read["k"]) is type(value)


# What is ours to write goes out in the types that RabbitMQ's own clients use.
WRITTEN: list[tuple[object, str]] = [
    (True, "74 01"),
    (False, "74 00"),
    (0, "49 00000000"),
    (-(1 << 31), "49 80000000"),
    ((1 << 31) - 1, "49 7fffffff"),
    (1 << 31, "6c 0000000080000000"),
    (-(1 << 63), "6c 8000000000000000"),
    (1 << 63, "53 00000013 '9223372036854775808'"),
    (LongInteger(1), "6c 0000000000000001"),
    (1.5, "64 3ff8000000000000"),
    (Decimal("12.34"), "44 02 000004d2"),
    (Decimal("-0.5"), "44 01 fffffffb"),
    (Decimal("1E+3"), "44 00 000003e8"),
    (Decimal("1E+999999"), "53 00000009 '1E+999999'"),
    (Decimal("1E-999"), "53 00000006 '1E-999'"),
    (Decimal("NaN"), "53 00000003 'NaN'"),
    ("ñ", "53 00000002 c3b1"),
    (b"\xff", "53 00000001 ff"),
    (Octets(b"\xff"), "78 00000001 ff"),
    (Timestamp(1), "54 0000000000000001"),
    (None, "56"),
    (["a", 1], "41 0000000b 53 00000001 'a' 49 00000001"),
    (("a",), "41 00000006 53 00000001 'a'"),
    ({"a": {}}, "46 00000007 01'a' 46 00000000"),
    (1j, "53 00000002 '1j'"),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN)
def test_a_value_is_written_with_its_type(value: object, written: str) -> None:
    assert values.field(value) == octets(written)


def test_pamqp_and_we_read_each_others_tables() -> None:
    table: dict[str, Any] = {
        "yes": True,
        "small": 5,
        "big": 1 << 40,
        "text": "ñ",
        "deep": {"list": [1, "a", {"none": None}]},
    }
    assert decode.field_table(values.table(table))[1] == table
    assert Reader(encode.field_table(table)).table() == table


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"tbBsuIilLfdDSxATFV")))
def test_any_other_type_is_a_fault(tag: int) -> None:
    with pytest.raises(SyntaxFault, match=f"unknown type {tag}"):
        Reader(bytes((tag,)) + bytes(32)).value()


def test_a_name_that_stands_twice_counts_by_its_last_value() -> None:
    assert Reader(octets("00000008 01'k' 62 01 01'k' 62 02")).table() == {"k": 2}


def test_names_in_tables_need_not_be_text() -> None:
    data = octets("00000004 01 ff 74 01")
    assert values.table(Reader(data).table()) == data


@pytest.mark.parametrize(
    "written",
    [
        "0000000a 01'k' 74 01",  # the table is longer than the frame
        "ffffffff 01'k' 74 01",
        "00000004 05'k' 74 01",  # the name is longer than the table
        "00000003 01'k' 74",  # no value
        "00000007 01'k' 53 00000005",  # the text is longer than the table
        "0000000c 01'k' 53 ffffffff 'abcde'",
        "0000000c 01'k' 78 7fffffff 'abcde'",
        "0000000c 01'k' 41 ffffffff 'abcde'",
        "0000000c 01'k' 46 000000ff 'abcde'",
        "00000009 01'k' 41 00000003 62 01",  # an inner length beyond the outer one
        "00000005 01'k' 6c 0000",  # half an integer
        "00000001 01",
        "000000",
    ],
)
def test_a_length_that_lies_is_a_fault(written: str) -> None:
    with pytest.raises(SyntaxFault):
        Reader(octets(written)).table()


def test_an_inner_table_cannot_read_what_follows_it() -> None:
    # The name in the inner table says 3 bytes, the table has one.
    with pytest.raises(SyntaxFault):
        Reader(octets("0000000b 01'k' 46 00000002 03'a' 'bcd'")).table()


@pytest.mark.parametrize("tag", [b"S", b"x", b"A", b"F"])
def test_nothing_is_allocated_for_a_length_that_was_only_announced(tag: bytes) -> None:
    data = tag + b"\xff\xff\xff\xf0" + bytes(64)
    tracemalloc.start()
    try:
        with pytest.raises(SyntaxFault):
            Reader(data).value()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def _nested(depth: int, tag: bytes) -> bytes:
    name = b"\x01n" if tag == b"F" else b""
    data = b""
    for _ in range(depth):
        data = name + tag + struct.pack(">I", len(data)) + data
    return b"F" + struct.pack(">I", len(data) + (0 if name else 2)) + (b"" if name else b"\x01n") + data


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_values_are_nested_up_to_a_limit(tag: bytes) -> None:
    value = Reader(_nested(DEPTH_MAX - 1, tag)).value()
    for _ in range(DEPTH_MAX - 1):
        value = value["n"] if isinstance(value, dict) else value[0]
    assert not value
    for depth in (DEPTH_MAX, DEPTH_MAX + 1, 10_000):
        with pytest.raises(SyntaxFault, match="nested more than"):
            Reader(_nested(depth, tag)).value()


@pytest.mark.parametrize(
    "data",
    [
        values.long_string(b"\0V" * 5),
        values.table({"a": [1, 2, 3], "b": 1}),
        values.table({"a": {"b": {"c": 1}}, "d": [True]}),
    ],
)
def test_what_comes_holds_only_so_many_values_and_what_was_taken_any_number(data: bytes) -> None:
    for values_max in (5, 6):
        assert Reader(data, values_max).table() == Reader(data).table()
        assert Reader(data, values_max).table_and_bytes() == Reader(data).table_and_bytes()
    with pytest.raises(TooManyValues, match="more than 4 values"):
        Reader(data, 4).table()
    with pytest.raises(TooManyValues):
        Reader(data, 4).table_and_bytes()


def test_a_copy_to_ten_thousand_queues_is_not_too_many() -> None:
    keys = [f"queue-{number}" for number in range(10_000)]
    raw = content.write_properties(BasicProperties(headers={"CC": keys}))
    assert content.read_properties(raw, VALUES_MAX).headers == {"CC": keys}


_TABLES: some.SearchStrategy[Any] = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(1 << 63), (1 << 63) - 1)
    | some.floats(allow_nan=False)
    | some.text(max_size=30)
    | some.binary(max_size=30).map(Octets)
    | some.integers(0, (1 << 64) - 1).map(Timestamp)
    | some.builds(
        lambda digits, scale: Decimal(digits).scaleb(-scale),
        some.integers(-(1 << 31), (1 << 31) - 1),
        some.integers(0, 20),
    ),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
TABLES = some.dictionaries(some.text(max_size=10), _TABLES, max_size=6)


@given(TABLES)
def test_what_is_written_in_a_table_is_read_from_it(table: dict[str, Any]) -> None:
    assert Reader(values.table(table)).table() == table


@given(some.data())
def test_what_is_written_in_a_method_is_read_from_it(data: some.DataObject) -> None:
    kind = data.draw(some.sampled_from(list(METHODS.values())))
    method = kind(*[data.draw(TABLES if wire == "table" else _STRATEGIES[wire]) for _, wire in kind.FIELDS])
    assert methods.read(methods.write(method)) == method


# -- properties -------------------------------------------------------------------------------------------------------

ALL_PROPERTIES = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"k": True},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    message_id="m",
    timestamp=1,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="i",
)
PROPERTY_TRANSCRIPTS = {
    "content_type": "8000 0a'text/plain'",
    "content_encoding": "4000 04'gzip'",
    "headers": "2000 00000004 01'k' 74 01",
    "delivery_mode": "1000 02",
    "priority": "0800 07",
    "correlation_id": "0400 01'c'",
    "reply_to": "0200 01'r'",
    "expiration": "0100 04'1000'",
    "message_id": "0080 01'm'",
    "timestamp": "0040 0000000000000001",
    "type": "0020 01't'",
    "user_id": "0010 05'guest'",
    "app_id": "0008 01'a'",
    "cluster_id": "0004 01'i'",
}
ALL_TRANSCRIPT = (
    "fffc 0a'text/plain' 04'gzip' 00000004 01'k' 74 01 02 07 01'c' 01'r' 04'1000' 01'm' 0000000000000001 01't' "
    "05'guest' 01'a' 01'i'"
)


def _present(read: BasicProperties) -> dict[str, object]:
    return {name: getattr(read, name) for name in PROPERTY_TRANSCRIPTS if getattr(read, name) is not None}


@pytest.mark.parametrize(("name", "transcript"), PROPERTY_TRANSCRIPTS.items())
def test_a_property_by_itself(name: str, transcript: str) -> None:
    value = getattr(ALL_PROPERTIES, name)
    assert content.write_properties(BasicProperties(**{name: value})) == octets(transcript)
    assert _present(content.read_properties(octets(transcript))) == {name: value}


def test_all_properties_together() -> None:
    assert content.write_properties(ALL_PROPERTIES) == octets(ALL_TRANSCRIPT)
    assert _present(content.read_properties(octets(ALL_TRANSCRIPT))) == _present(ALL_PROPERTIES)


def test_no_properties() -> None:
    assert content.write_properties(BasicProperties()) == b"\0\0"
    assert _present(content.read_properties(b"\0\0")) == {}


def test_pamqp_reads_the_same_properties() -> None:
    head = pamqp_header.ContentHeader()
    head.unmarshal(content.write_head(5, octets(ALL_TRANSCRIPT)))
    assert head.body_size == 5
    theirs: dict[str, Any] = {name: value for name, value in head.properties if value is not None}
    assert theirs.pop("message_type") == "t"
    assert theirs.pop("timestamp").timestamp() == 1
    ours = _present(ALL_PROPERTIES)
    del ours["type"], ours["timestamp"]
    assert theirs == ours


def test_pika_reads_the_same_properties() -> None:
    theirs = pika_spec.BasicProperties()
    theirs.decode(octets(ALL_TRANSCRIPT))
    assert {name: getattr(theirs, name) for name in PROPERTY_TRANSCRIPTS} == _present(ALL_PROPERTIES)
    assert b"".join(theirs.encode()) == octets(ALL_TRANSCRIPT)


@pytest.mark.parametrize("size", [0, 1, 1 << 40, (1 << 64) - 1])
def test_a_content_header_says_how_large_the_body_will_be(size: int) -> None:
    head = content.write_head(size, b"\0\0")
    assert head == octets("003c 0000") + size.to_bytes(8, "big") + b"\0\0"
    assert content.read_head(head) == (size, b"\0\0")


@pytest.mark.parametrize("size", range(14))
def test_a_content_header_that_is_too_short_is_a_fault(size: int) -> None:
    with pytest.raises(SyntaxFault):
        content.read_head(content.write_head(0, b"\0\0")[:size])


@pytest.mark.parametrize(
    ("transcript", "text"),
    [
        (
            "0032 0000 0000000000000000 0000",
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        ),
        (
            "003c 0001 0000000000000000 0000",
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
    ],
)
def test_a_content_header_of_something_else_is_refused(transcript: str, text: str) -> None:
    with pytest.raises(replies.ConnectionClosing) as refused:
        content.read_head(octets(transcript))
    assert refused.value.reply_text == text
    assert refused.value.ids == (60, 40)


@pytest.mark.parametrize("transcript", ["0001", "0001 0000", "8000", "8000 05'abc'", "0000 00", "2000 00000004 01'k'"])
def test_properties_that_are_not_what_their_flags_say_are_a_fault(transcript: str) -> None:
    with pytest.raises(SyntaxFault):
        content.read_properties(octets(transcript))


def test_properties_that_are_cut_short_are_a_fault() -> None:
    data = octets(ALL_TRANSCRIPT)
    for size in range(len(data)):
        with pytest.raises(SyntaxFault):
            content.read_properties(data[:size])


@given(
    some.builds(
        BasicProperties,
        content_type=some.none() | some.text(max_size=60),
        headers=some.none() | TABLES,
        delivery_mode=some.none() | some.integers(0, 255),
        priority=some.none() | some.integers(0, 255),
        correlation_id=some.none() | some.text(max_size=60),
        expiration=some.none() | some.text(max_size=60),
        timestamp=some.none() | some.integers(0, (1 << 64) - 1),
        cluster_id=some.none() | some.text(max_size=60),
    )
)
def test_what_is_written_in_properties_is_read_from_them(basic: BasicProperties) -> None:
    assert _present(content.read_properties(content.write_properties(basic))) == _present(basic)


def test_headers_that_are_left_alone_keep_their_types_when_others_are_added() -> None:
    entries = b"".join(b"\x02%02d" % place + octets(written) for place, (_, written, _) in enumerate(TYPES))
    raw = b"\x20\x00" + values.long_string(entries)
    basic = content.read_properties(raw)
    assert content.write_properties(basic) == raw
    basic.headers = {**(basic.headers or {}), "00": "new", "x": 1}
    changed = b"\x0200" + octets("53 00000003 'new'") + entries[5:] + octets("01'x' 49 00000001")
    assert content.write_properties(basic) == b"\x20\x00" + values.long_string(changed)


# -- frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_is_type_channel_size_payload_and_end() -> None:
    assert frames.frame(frames.METHOD, 258, b"abc") == octets("01 0102 00000003 'abc' ce")
    assert octets("08 0000 00000000 ce") == frames.HEARTBEAT_FRAME
    assert octets("'AMQP' 00 00 09 01") == frames.PROTOCOL_HEADER


def test_an_empty_body_has_no_frame() -> None:
    assert frames.body_frames(1, b"", 4096) == []


@pytest.mark.parametrize("frame_max", [4096, 131_072])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_body_is_split_at_the_largest_frame(frame_max: int, more: int, count: int) -> None:
    room = frame_max - 8
    body = bytes(range(256)) * (room * count // 256 + 2)
    body = body[: room * count + more]
    sent = frames.body_frames(3, body, frame_max)
    assert len(sent) == math.ceil(len(body) / room)
    assert all(len(each) <= frame_max for each in sent)
    assert all(each[:3] == b"\x03\x00\x03" and each[-1] == 0xCE for each in sent)
    assert b"".join(each[7:-1] for each in sent) == body


# -- other protocols --------------------------------------------------------------------------------------------------


def test_another_protocol_sees_what_came_over_amqp() -> None:
    assert properties.read(content.TAG + octets(ALL_TRANSCRIPT)) == Properties(
        headers={"k": True},
        content_type="text/plain",
        content_encoding="gzip",
        correlation_id="c",
        reply_to="r",
        type="t",
        app_id="a",
        user_id="guest",
        external_id="m",
        timestamp_ms=1000,
    )


def test_another_protocol_sees_only_what_it_can_write() -> None:
    basic = BasicProperties(
        content_type="\udcff",
        headers={"\udcfe": [{"\udcfd": Octets(b"x")}, Timestamp(5)]},
        timestamp=(1 << 64) - 1,
    )
    seen = translation.as_properties(content.TAG + content.write_properties(basic))
    assert seen == Properties(content_type="�", headers={"�": [{"�": b"x"}, 5]})
    assert type(seen.headers["�"][1]) is int
    properties.write(seen)


def test_an_amqp_consumer_sees_what_came_through_another_protocol() -> None:
    basic = translation.from_properties(
        Properties(headers={"a": [1, {"b": 2.5}]}, content_type="text/plain", external_id="m", timestamp_ms=2_500)
    )
    assert _present(basic) == {
        "content_type": "text/plain",
        "headers": {"a": [1, {"b": 2.5}]},
        "delivery_mode": 2,
        "message_id": "m",
        "timestamp": 2,
    }


def test_what_amqp_has_no_room_for_is_cut_rather_than_kept_from_its_consumer() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"n": deep}
    basic = translation.from_properties(
        Properties(headers={"ñ" * 200: 1, "deep": deep}, correlation_id="ñ" * 200, timestamp_ms=-1)
    )
    read = content.read_properties(content.write_properties(basic))
    assert read.correlation_id == "ñ" * 126 + "..."
    assert read.timestamp is None
    assert read.headers is not None
    assert read.headers["ñ" * 126 + "..."] == 1


# -- errors and logins ------------------------------------------------------------------------------------------------


def test_a_reply_text_is_never_longer_than_a_short_string_and_always_text() -> None:
    assert (
        replies.ChannelClosing(404, "no queue 'q' in vhost '/'").reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    )
    for name in ("n" * 300, "ñ" * 300, "\udcff" * 300):
        text = replies.ChannelClosing(404, name).reply_text
        assert len(text.encode()) <= 255
        assert text.endswith("...")
    assert replies.ChannelClosing(404, "\udcff").reply_text == "NOT_FOUND - �"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "<<>>"),
        (b"abc", '<<"abc">>'),
        (b'a"\\', '<<"a\\"\\\\">>'),
        (b"\0\x14a", "<<0,20,97>>"),
        (b"\xff", "<<255>>"),
    ],
)
def test_bytes_are_shown_as_erlang_shows_them(data: bytes, text: str) -> None:
    assert replies.shown(data) == text


def test_every_code_has_its_name() -> None:
    codes = {value for name, value in vars(replies).items() if name.isupper() and type(value) is int and value > 300}
    assert codes - {replies.NO_ROUTE} == set(replies.NAMES)
    assert all(getattr(replies, name) == code for code, name in replies.NAMES.items())


AMQPLAIN = "05'LOGIN' 53 00000005 'guest' 08'PASSWORD' 53 00000005 'guest'"


@pytest.mark.parametrize(
    ("mechanism", "response", "credentials"),
    [
        ("PLAIN", b"\0guest\0guest", ("guest", "guest")),
        ("PLAIN", "\0ñ\0ü".encode(), ("ñ", "ü")),
        ("PLAIN", b"\0guest\0", ("guest", "")),
        ("PLAIN", b"other\0guest\0guest", None),
        ("PLAIN", b"\0guest", None),
        ("PLAIN", b"\0guest\0guest\0", None),
        ("PLAIN", b"", None),
        ("PLAIN", b"\0\xff\0guest", None),
        ("AMQPLAIN", octets(AMQPLAIN), ("guest", "guest")),
        ("AMQPLAIN", octets(AMQPLAIN)[:-1], None),
        ("AMQPLAIN", octets("05'LOGIN' 53 00000005 'guest'"), None),
        ("AMQPLAIN", octets("05'LOGIN' 49 00000005 08'PASSWORD' 53 00000005 'guest'"), None),
        ("AMQPLAIN", b"", None),
        ("EXTERNAL", b"", None),
        ("plain", b"\0guest\0guest", None),
    ],
)
def test_credentials_are_read(mechanism: str, response: bytes, credentials: tuple[str, str] | None) -> None:
    assert sasl.read_credentials(mechanism, response) == credentials


@pytest.mark.parametrize(
    ("name", "password", "host", "is_known"),
    [
        ("guest", "guest", "127.0.0.1", True),
        ("guest", "guest", "127.8.8.8", True),
        ("guest", "guest", "::1", True),
        ("guest", "guest", "::ffff:127.0.0.1", True),
        ("guest", "guest", "192.0.2.1", False),
        ("guest", "guest", "::ffff:192.0.2.1", False),
        ("guest", "guest", "somewhere", False),
        ("guest", "", "127.0.0.1", False),
        ("guest", "Guest", "127.0.0.1", False),
        ("", "guest", "127.0.0.1", False),
        ("ñ", "guest", "127.0.0.1", False),
        ("guest\udcff", "\udcff", "127.0.0.1", False),
    ],
)
def test_guest_comes_in_from_this_machine_only(name: str, password: str, host: str, is_known: bool) -> None:
    assert (users.why_refused(name, password, host) is None) is is_known


@pytest.mark.parametrize(
    ("name", "password", "host", "why"),
    [
        ("guest", "Guest", "127.0.0.1", "the password is not right"),
        ("root", "guest", "127.0.0.1", "there is no such user; only guest is known"),
        ("guest", "guest", "192.0.2.1", "guest may come in from the broker's own machine only"),
        ("guest", "Guest", "192.0.2.1", "the password is not right"),
    ],
)
def test_a_refused_login_says_why(name: str, password: str, host: str, why: str) -> None:
    assert users.why_refused(name, password, host) == why

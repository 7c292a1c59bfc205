"""SQS, the same for Smista and moto: requests as boto3 writes them, batches of ten, one request at a time on each
connection. Neither server verifies the signature."""

from __future__ import annotations

import asyncio
import json
import re

from bench.links import Consumer, Link, Publisher, Work
from bench.peers.peer import Peer
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, STAMP_BYTES, Encode, Ids

BATCH = 10
_POLL_S = 0.01
_OF_DELETES = b'{"Successful"'
_HEADERS = (
    "Accept-Encoding: identity\r\n"
    "Content-Type: application/x-amz-json-1.0\r\n"
    "User-Agent: Boto3/1.40.61 md/Botocore#1.40.61 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11 md/pyimpl#CPython "
    "m/Z,b,D cfg/retry-mode#legacy Botocore/1.40.61\r\n"
    "x-amzn-query-mode: true\r\n"
    "X-Amz-Date: 20260131T120000Z\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=test/20260131/us-east-1/sqs/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, "
    "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7\r\n"
    "amz-sdk-invocation-id: 8b1b5f0e-6c8b-4c0a-9a53-1f0f3f6f6d0a\r\n"
    "amz-sdk-request: attempt=1\r\n"
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECEIPT = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')
_BODY = re.compile(rb'"Body": ?"(\d{16})')
_ATTRIBUTES = ("message_id", "correlation_id", "content_type", "content_encoding", *HEADERS)


def request(action: str, parameters: dict[str, object]) -> bytes:
    return raw_request(action, json.dumps(parameters))


def raw_request(action: str, body: str) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.{action}\r\n{_HEADERS}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


class SqsLink(Link):
    """`answered` gets one answer after the other. Where the server closes after each, as moto does, the next request
    goes out on a new connection."""

    urls: dict[str, str]
    """Of the queues, by their names."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._asked = b""
        self._is_last = self._is_closing = False
        self._connecting: asyncio.Task[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_last = False
        if self._asked:
            self.transport.write(self._asked)

    def write(self, data: bytes) -> None:
        self._asked = data
        if not self._is_last:
            self.transport.write(data)

    def read(self) -> None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(self.buffer, 0, end)
        assert found is not None, self.buffer
        length = end + 4 + int(found[1])
        if len(self.buffer) < length:
            return
        answer, self.buffer = self.buffer[:length], self.buffer[length:]
        assert answer.split(b" ", 2)[1] == b"200", answer
        self._asked = b""
        self._is_last = b"\r\nconnection: close" in answer[:end].lower()
        self.answered(answer[end + 4 :])

    def answered(self, body: bytes) -> None:
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_closing:
            super().connection_lost(exc)
            return
        self._is_last = True
        port = self.transport.get_extra_info("peername")[1]
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_connection(lambda: self, "127.0.0.1", port))

    async def close(self) -> None:
        self._is_closing = True
        if self._connecting is not None:
            await self._connecting
        self.transport.abort()


class SqsCaller(SqsLink):
    """Asks for one thing after the other."""

    async def call(self, action: str, parameters: dict[str, object]) -> bytes:
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.write(request(action, parameters))
        return await self._answer

    def answered(self, body: bytes) -> None:
        self._answer.set_result(body)


class SqsPublisher(SqsLink, Publisher):
    chunk_max = BATCH
    window_max = BATCH

    def encode(self, queue: str) -> Encode:
        def encode(body: bytes, ids: Ids | None) -> bytes:
            entry: dict[str, object] = {"MessageBody": body.decode()}
            if ids is not None:
                values = (*ids, CONTENT_TYPE, CONTENT_ENCODING, *HEADERS.values())
                attributes = zip(_ATTRIBUTES, values, strict=True)
                entry["MessageAttributes"] = {
                    name: {"DataType": "String", "StringValue": value} for name, value in attributes
                }
            return json.dumps(entry).encode()

        return encode

    def together(self, queue: str, messages: list[bytes]) -> bytes:
        self._each = len(messages)
        url = json.dumps(self.urls[queue])
        entries = ", ".join(f'{{"Id": "{number}", {message.decode()[1:]}' for number, message in enumerate(messages))
        return raw_request("SendMessageBatch", f'{{"QueueUrl": {url}, "Entries": [{entries}]}}')

    def answered(self, body: bytes) -> None:
        assert b'"BatchResultErrorEntry"' not in body, body
        self.confirmed_to(self.confirmed + self._each)


class SqsConsumer(SqsLink, Consumer):
    wait_s = 1

    async def consume(self, queue: str) -> None:
        self._url = self.urls[queue]
        self._deletes: list[bytes] = []
        self._receive = request(
            "ReceiveMessage",
            {
                "QueueUrl": self._url,
                "MaxNumberOfMessages": BATCH,
                "WaitTimeSeconds": self.wait_s,
                "VisibilityTimeout": 600,
                "MessageAttributeNames": ["All"],
            },
        )
        self.write(self._receive)

    def answered(self, body: bytes) -> None:
        if self._deletes:
            self.write(self._deletes.pop())
            return
        receipts = _RECEIPT.findall(body)
        if receipts:
            found = _BODY.search(body)
            assert found is not None, body
            self.took(len(receipts), body, found.end() - STAMP_BYTES)
            *self._deletes, first = self._acknowledging([receipt.decode() for receipt in receipts])
            self.write(first)
        elif self.wait_s or body.startswith(_OF_DELETES):
            self.write(self._receive)
        else:
            asyncio.get_running_loop().call_later(_POLL_S, self.write, self._receive)

    def _acknowledging(self, receipts: list[str]) -> list[bytes]:
        if self.work.acks_single:
            return [request("DeleteMessage", {"QueueUrl": self._url, "ReceiptHandle": one}) for one in receipts]
        entries = [{"Id": str(number), "ReceiptHandle": one} for number, one in enumerate(receipts)]
        return [request("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries})]


class SqsPeer(Peer):
    connections = 32
    wait_s = 1
    """How long a receive waits where there is nothing; 0: it is asked again after a while."""
    _urls: dict[str, str]

    async def declare(self, work: Work) -> None:
        link = await SqsCaller.connect(self.port, work)
        self._urls = {}
        for queue in work.names:
            self._urls[queue] = json.loads(await link.call("CreateQueue", {"QueueName": queue}))["QueueUrl"]
        await link.close()

    async def publisher(self, work: Work) -> Publisher:
        link = await SqsPublisher.connect(self.port, work)
        link.urls = self._urls
        return link

    async def consumer(self, work: Work) -> Consumer:
        link = await SqsConsumer.connect(self.port, work)
        link.urls = self._urls
        link.wait_s = self.wait_s
        return link

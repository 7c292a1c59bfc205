"""What a page of another origin could do, and can do no more; and that no route, old or new, is without the check."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from smista.protocols.http import log_paths
from smista.protocols.http.access import SECURITY_HEADERS
from smista.protocols.http.app import _OTHER_PATHS
from smista.protocols.http.claim_rows import ROWS_PATH
from smista.protocols.http.routes import ROUTES
from smista.protocols.http.staged_put import STAGE_PATH
from tests.protocols.http.caller import Answer, Caller, new_name
from tests.served import Served
from tests.server.raw_http import Client
from tests.server_thread import ServerThread
from tests.waiting import PATIENCE_S

EVIL = "https://evil.example"
APP = "https://app.example.com"
FOREIGN = {"Origin": EVIL, "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
FORM = "application/x-www-form-urlencoded"

EVERY_ROUTE = sorted(
    {(route.method, re.sub(r"\{\w+\}", "1", route.path)) for route in ROUTES}
    | {(method, path) for path in _OTHER_PATHS for method in ("GET", "HEAD", "POST", "OPTIONS")}
    | {("GET", path) for path in log_paths.PATHS}
    | {("GET", re.sub(r"\{\w+\}", "1", ROWS_PATH)), ("PUT", re.sub(r"\{\w+\}", "1", STAGE_PATH))}
    | {(method, "/nothing/here") for method in ("GET", "POST", "DELETE")}
    | {("GET", "/?Action=ListQueues"), ("POST", "/?Action=ListQueues"), ("POST", "/000000000000/orders")}
    | {("GET", "/000000000000/orders?Action=GetQueueAttributes"), ("GET", "/000000000000/orders")}
)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Lets the pages of one origin in. On disk, for its log to be read."""
    data = tmp_path_factory.mktemp("data")
    with ServerThread(data, allowed_origins=APP, allowed_hosts="broker.example.com") as server:
        yield server


def ask(server: Served, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    with Caller(server.address) as caller:
        return caller.send(method, path, body, **headers)


# -- every route ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [{"Origin": EVIL}, {"Sec_Fetch_Site": "cross-site"}, {"Host": "evil.example"}])
def test_every_route_refuses_pages_of_others_and_names_of_others(on_disk: Served, refused: dict[str, str]) -> None:
    for method, path in EVERY_ROUTE:
        answer = ask(on_disk, method, path, b"", **refused)
        assert answer.status == 403, (method, path, answer.status)
        assert b"allowed_hosts" in answer.body or b"allowed_origins" in answer.body or method == "HEAD"


def test_every_answer_tells_browsers_to_keep_it_to_themselves(on_disk: Served) -> None:
    for method, path in EVERY_ROUTE:
        for more in ({}, {"Origin": EVIL}, {"Origin": APP}):
            answer = ask(on_disk, method, path, b"", **more)
            for name, value in SECURITY_HEADERS:
                assert answer.headers.get(name.decode()) == value.decode(), (method, path, more, name)
            readable_by = APP if more.get("Origin") == APP else None
            assert answer.headers.get("access-control-allow-origin") == readable_by, (method, path, more)


def test_the_stream_refuses_them_too(on_disk: Served) -> None:
    url = f"ws://127.0.0.1:{on_disk.port}/v1/stream"
    for how in ({"origin": Origin(EVIL)}, {"additional_headers": {"Sec-Fetch-Site": "cross-site"}}):
        with pytest.raises(InvalidStatus) as refusal, connect(url, open_timeout=PATIENCE_S, **how):
            pass
        answer = refusal.value.response
        assert answer.status_code == 403
        assert json.loads(answer.body)["error"]["code"] == "origin_not_allowed"
        assert answer.headers["content-security-policy"]
    with connect(url, origin=Origin(APP), open_timeout=PATIENCE_S) as stream:
        stream.send(json.dumps({"id": 1, "command": "queue.list", "payload": {}}))
        assert "queues" in stream.recv(timeout=PATIENCE_S)
        assert stream.response is not None
        assert stream.response.headers["x-content-type-options"] == "nosniff"


def test_a_name_that_leads_here_opens_no_stream(on_disk: Served) -> None:
    with socket.create_connection(on_disk.address, timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"GET /v1/stream HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nUpgrade: websocket\r\n"
            b"Connection: upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_no_get_stands_for_a_command_that_changes_something() -> None:
    reading = {"info", "list", "stats", "settings", "browse", "get", "peek", "bindings", "route"}
    assert {route.command.rpartition(".")[2] for route in ROUTES if route.method == "GET"} == reading


# -- what was tried ---------------------------------------------------------------------------------------------------


def test_a_page_of_another_origin_reads_and_changes_nothing(server: Served, http: Caller) -> None:
    victim, others = http.new_queue(), [http.new_queue() for _ in range(4)]
    http.call("queue.publish", queue=victim, message={"card": "4111"})
    delete = [json.dumps({"command": "queue.delete", "payload": {"queue": queue}}).encode() for queue in others]
    sqs = [f"Action=DeleteQueue&QueueUrl=/000000000000/{queue}" for queue in others]
    for method, path, body, headers in (
        ("POST", "/v1/command", delete[0], {}),
        ("POST", "/v1/command", delete[0], {"content_type": "text/plain"}),
        ("POST", f"/v1/queues/{victim}/purge", b"", {}),
        ("POST", f"/v1/queues/{victim}/messages", b"evil", {"content_type": "text/plain"}),
        ("POST", f"/v1/queues/{victim}/receive", b"", {}),
        ("POST", "/", sqs[2].encode(), {"content_type": FORM}),
        ("GET", f"/?{sqs[3]}", None, {"sec_fetch_dest": "image"}),
        ("OPTIONS", "/v1/command", None, {"access_control_request_method": "POST"}),
    ):
        answer = ask(server, method, path, body, **{**FOREIGN, **headers})
        assert answer.status == 403, (path, headers)
        assert "access-control-allow-origin" not in answer.headers
    for host, more in (("evil.example:9324", {}), ("evil.example", {"Origin": "http://evil.example"})):
        answer = ask(server, "GET", "/v1/queues", None, Host=host, **more)
        assert answer.refusal.code == "host_not_allowed"
    found = http.call("queue.list")["queues"]
    assert {victim, *others} <= set(found)
    assert http.call("queue.stats", queue=victim)["ready"] == 1


def test_an_sqs_client_is_refused_in_its_own_words(server: Served) -> None:
    answer = ask(
        server, "POST", "/", b"{}", Host="broker", X_Amz_Target="AmazonSQS.ListQueues", Content_Type="application/json"
    )
    assert answer.status == 403
    said = json.loads(answer.body)
    assert said["__type"] == "com.amazonaws.sqs#AccessDeniedException"
    assert "'broker'" in said["message"]
    assert "SMISTA_ALLOWED_HOSTS" in said["message"]
    answer = ask(server, "GET", "/?Action=ListQueues", Origin=EVIL)
    assert b"<Code>AccessDenied</Code>" in answer.body


# -- a body says what it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [None, "text/plain", FORM, "multipart/form-data; boundary=x"])
def test_a_command_that_does_not_say_it_is_one_is_415(http: Caller, content_type: str | None) -> None:
    queue = http.new_queue()
    headers = {} if content_type is None else {"content_type": content_type}
    body = json.dumps({"command": "queue.delete", "payload": {"queue": queue}}).encode()
    for path in ("/v1/command", f"/v1/queues/{queue}/purge"):
        refusal = http.send("POST", path, body, **headers).refusal
        assert (refusal.status, refusal.code) == (415, "unsupported_media_type")
        assert "application/json" in refusal.message
    assert queue in http.call("queue.list")["queues"]


@pytest.mark.parametrize(
    "content_type", [None, FORM, FORM.upper() + "; charset=utf-8", "multipart/form-data; boundary=x"]
)
def test_a_publish_by_curl_without_a_content_type_is_415_and_stores_nothing(
    http: Caller, content_type: str | None
) -> None:
    queue = http.new_queue()
    headers = {} if content_type is None else {"content_type": content_type}
    refusal = http.send("POST", f"/v1/queues/{queue}/messages", b'{"body": "x"}', **headers).refusal
    assert (refusal.status, refusal.code) == (415, "unsupported_media_type")
    assert "application/json" in refusal.message
    assert "application/octet-stream" in refusal.message
    assert http.call("queue.stats", queue=queue)["ready"] == 0


def test_a_request_without_a_body_needs_no_content_type(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, 1)
    assert http.send("POST", f"/v1/queues/{queue}/purge", b"").value["purged"] == 1


# -- who is let in ----------------------------------------------------------------------------------------------------


def test_a_page_of_an_allowed_origin_asks_first_and_then_reads_and_changes(on_disk: Served) -> None:
    asked = ask(
        on_disk,
        "OPTIONS",
        "/v1/command",
        Origin=APP,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type,idempotency-key",
        Access_Control_Request_Private_Network="true",
    )
    assert (asked.status, asked.body) == (204, b"")
    assert asked.headers["access-control-allow-origin"] == APP
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "content-type,idempotency-key"
    assert asked.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in asked.headers
    with Caller(on_disk.address) as caller:
        answer = caller.post("queue.declare", {"queue": new_name("queue")}, Origin=APP)
        assert (answer.status, answer.headers["vary"]) == (200, "origin")


def test_rows_of_the_log_are_read_by_pages_of_an_allowed_origin(on_disk: Served) -> None:
    answer = ask(on_disk, "GET", "/v1/log?columns=position", Origin=APP)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, APP)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in ask(on_disk, "GET", "/v1/log?columns=position").headers


def test_a_name_that_is_allowed_is_served_as_a_proxy_sends_it(on_disk: Served) -> None:
    own = "https://broker.example.com"
    assert ask(on_disk, "GET", "/v1/queues", Host="broker.example.com").status == 200
    assert ask(on_disk, "GET", "/v1/queues", Host="broker.example.com", Origin=own).status == 200
    assert ask(on_disk, "GET", "/v1/queues", Host=f"{socket.gethostname()}:{on_disk.port}").status == 200
    # A proxy that puts its own idea of the host in has to be told of, or has to pass on the name.
    assert ask(on_disk, "GET", "/v1/queues", Origin=own).refusal.code == "origin_not_allowed"


def test_http_1_0_without_a_host_is_served(server: Served) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_policy_lets_exactly_the_scripts_and_styles_of_the_page_run(http: Caller) -> None:
    page = http.send("GET", "/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>".encode(), page.body, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found]
        assert policy[f"{tag}-src"] == " ".join(f"'sha256-{one}'" for one in hashes)
        assert len(found) == 1
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert not re.search(
        rb'\son[a-z]+=|style="|javascript:', re.sub(rb"<script>.*?</script>", b"", page.body, flags=re.S)
    )


def test_what_the_server_refuses_by_itself_has_the_headers_too(server: Served) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    connection.request("GET", "/", headers={"x": "y" * 100_000})
    answer: Any = connection.getresponse()
    assert answer.status == 431
    assert answer.getheader("x-content-type-options") == "nosniff"
    connection.close()


@pytest.mark.parametrize("path", ["/v1/queues", "/healthz", "/000000000000/orders", "/?Action=ListQueues"])
def test_a_request_of_http_1_1_without_a_host_is_refused(server: Served, path: str) -> None:
    with Client(server.address) as client:
        client.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = client.answer()
    assert answer.status == 400
    assert b"`Host`" in answer.body

"""Listeners: a port is ours before anything else is done, or the reason is given."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smista.log import SqliteLog
from smista.server import listening, serve
from smista.server.errors import CannotListen
from smista.server.listening import is_exposed, listen, names_of_this_machine
from smista.server.settings import ServerSettings
from tests.logged import logged


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A port that another server has bound and does not listen on yet."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        yield other


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_of_two_that_bind_a_port_at_once_the_first_to_listen_has_it(bound: socket.socket) -> None:
    with listen("127.0.0.1", port_of(bound), "--amqp-port"), pytest.raises(OSError, match="in use"):
        bound.listen()


def test_the_other_is_told_which_port_it_is(bound: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = port_of(bound)

    class Late(socket.socket):
        def listen(self, *backlog: int) -> None:
            bound.listen()
            super().listen(*backlog)

    monkeypatch.setattr("socket.socket", Late)
    with pytest.raises(CannotListen) as caught:
        listen("127.0.0.1", port, "--amqp-port")
    assert f"Cannot listen on 127.0.0.1, port {port}: Address already in use; stop what" in str(caught.value)
    assert str(caught.value).endswith("port by --amqp-port.")


class NoServers(asyncio.SelectorEventLoop):
    """A loop on which nothing can be served, on some ports."""

    refused: Callable[[socket.socket], bool]

    async def create_server(  # type: ignore[override]  # of its many forms the one that is used
        self, *arguments: Any, sock: socket.socket, **options: Any
    ) -> Any:
        if self.refused(sock):
            raise OSError(24, "Too many open files")
        return await super().create_server(*arguments, sock=sock, **options)


@pytest.mark.parametrize("protocol", ["http", "amqp"])
def test_a_listener_that_cannot_be_served_ends_it_with_2_and_the_log_closed(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flags: dict[int, str] = {}

    def listen_and_note(host: str, port: int, flag: str) -> socket.socket:
        listener = listen(host, port, flag)
        flags[port_of(listener)] = flag
        return listener

    class Loop(NoServers):
        refused = staticmethod(lambda sock: flags[port_of(sock)] == f"--{protocol}-port")

    def run(main: Any) -> int:
        with asyncio.Runner(loop_factory=Loop) as runner:
            return int(runner.run(main))

    monkeypatch.setattr(serve, "listen", listen_and_note)
    monkeypatch.setattr("uvloop.run", run)
    said: list[str] = []
    settings = ServerSettings(data=str(tmp_path / "data"), http_port=0, amqp_port=0)
    assert serve.run(settings, said.append) == 2
    [port] = [port for port, flag in flags.items() if flag == f"--{protocol}-port"]
    assert f"cannot start: Cannot listen on 127.0.0.1, port {port}: Too many open files" in logged(caplog)
    assert said == []
    SqliteLog.open(tmp_path / "data").close()


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("::", True)])
def test_whether_others_can_reach_it(host: str, expected: bool) -> None:
    with listen(host, 0, "--http-port") as listener:
        assert is_exposed(listener) is expected


def test_the_names_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Smista-0")
    monkeypatch.setattr(listening, "HOSTS_FILE", tmp_path / "hosts")
    assert names_of_this_machine() == {"smista-0"}
    (tmp_path / "hosts").write_text(
        "127.0.0.1 localhost\n\n# 10.1.1.1 smista-0 commented.example\n127.0.0.1 blocked.example\n"
        "10.244.0.7\tsmista-0.smista.default.svc.cluster.local smista-0 # the pod\n"
    )
    assert names_of_this_machine() == {"smista-0", "smista-0.smista.default.svc.cluster.local"}

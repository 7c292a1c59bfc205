"""`serve`: its flags, its variables, its file, and how it ends."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from smista.server.settings import ServerSettings, flag
from tests.cli.conftest import Smista, address_of, plain_environment, process
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S


def test_every_setting_is_a_flag_with_what_it_means(offline: Smista) -> None:
    text = " ".join(offline("serve", "--help", environment={"COLUMNS": "200"}).out.split())
    for field in msgspec.structs.fields(ServerSettings):
        assert f" {flag(field.name)} " in text, field.name
    assert "The port for HTTP and WebSocket; 0 picks a free one. Default 9324; variable SMISTA_HTTP_PORT." in text
    assert "Publishes are refused when less is free." in text


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--http-port", "x"], {}, "http_port is 'x' from flag --http-port"),
        (["--log-level", "loud"], {}, "log_level is 'loud'"),
        ([], {"SMISTA_HTTP_PORT": "x"}, "from variable SMISTA_HTTP_PORT"),
        (["--config", "nowhere.toml"], {}, "nowhere.toml cannot be read: No such file or directory. ["),
        (["--http-prot", "1"], {}, "No such option"),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_wrong_configuration_is_2_and_one_clear_line(
    offline: Smista, arguments: list[str], environment: dict[str, str], expected: str
) -> None:
    done = offline("serve", *arguments, environment=environment)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--host", "no-such-host.invalid"], "give an address of this machine by --host"),
        (["--host", "192.0.2.1"], "give an address of this machine by --host"),
        (["--data", "file"], "file does not hold a Smista log: it is not a directory"),
        (
            ["--data", "file/below"],
            "the log in file/below cannot be opened: Not a directory; see that this user may write there, or choose",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_place_that_cannot_be_used_is_2_and_the_cure_fits(
    offline: Smista, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    (tmp_path / "file").write_text("something else")
    done = offline("serve", "--http-port", "0", "--amqp-port", "0", *arguments, directory=tmp_path)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert expected in line
    assert "Errno" not in line


def test_a_port_that_is_taken_is_named_with_its_flag(offline: Smista, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags in (["--http-port", port, "--amqp-port", "0"], ["--http-port", "0", "--amqp-port", port]):
            done = offline("serve", "--memory", *flags, directory=tmp_path)
            assert done.code == 2
            assert f"port {port}: Address already in use; stop what is listening there" in done.err
            assert f"port by {flags[flags.index(port) - 1]}." in done.err


def test_it_serves_from_a_file_of_settings_keeps_its_data_and_stops_when_asked(offline: Smista, tmp_path: Path) -> None:
    (tmp_path / "smista.toml").write_text('data = "here"\nhttp_port = 0\namqp_port = 0\n')
    with process("serve", "--config", "smista.toml", directory=tmp_path) as serving:
        address = address_of(serving)
        assert offline("--url", address, "put", "orders", "x", "--declare").code == 0
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(PATIENCE_S) == 0
    assert (tmp_path / "here" / "log.db").exists()
    with ServerProcess(tmp_path / "here") as server:
        assert offline("--url", server.url, "get", "orders", "--body").out == "x\n"


def test_a_flag_wins_over_a_variable(tmp_path: Path) -> None:
    arguments = ("serve", "--no-memory", "--data", "chosen", "--http-port", "0", "--amqp-port", "0")
    with process(*arguments, directory=tmp_path, SMISTA_MEMORY="true", SMISTA_DATA="other") as serving:
        address_of(serving)
    assert (tmp_path / "chosen").exists()
    assert not (tmp_path / "other").exists()


def test_it_serves_though_nobody_can_read_where(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        serving = subprocess.Popen(
            [sys.executable, "-m", "smista", "serve", "--memory", "--http-port", "0", "--amqp-port", "0"],
            env=plain_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    with serving:
        assert serving.stderr is not None
        lines = iter(serving.stderr)
        expected = next((line for line in lines if "listening" in line), "")
        assert expected.startswith(
            "The output cannot be written: No space left on device. It was: http listening on http://"
        )
        with socket.create_connection(("127.0.0.1", int(expected.rpartition(":")[2])), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        serving.send_signal(signal.SIGTERM)
        assert "stopped" in list(lines)[-1]
        assert serving.wait(PATIENCE_S) == 0

"""A RabbitMQ of the benchmark's own: Debian's package, on free ports of loopback, its data in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SERVER = "/usr/sbin/rabbitmq-server"
START_S = 90


def install() -> bool:
    """See that it is there; installs it where we may. False where it cannot be had."""
    if Path(SERVER).exists():
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    # The package would start a server by itself; a policy of our own for the time of the install keeps it from that.
    policy = Path("/usr/sbin/policy-rc.d")
    had_policy = policy.exists()
    if not had_policy:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "rabbitmq-server"]):
            subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        if not had_policy:
            policy.unlink()
    return Path(SERVER).exists()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running() -> Iterator[tuple[int, int]]:
    """Start it, give its port and the session of its processes, stop it."""
    folder = Path(tempfile.mkdtemp(prefix="smista-rabbitmq-"))
    folder.chmod(0o777)
    port, epmd = _free_port(), _free_port()
    (folder / "plugins").write_text("[].")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(_free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    server = subprocess.Popen(
        [SERVER], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait(server, port)
        yield port, server.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        _stop_epmd(epmd)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"rabbitmq-server ended with {server.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            if probe.recv(1):
                return
        time.sleep(0.3)
    raise RuntimeError("rabbitmq-server did not come up")


def _stop_epmd(port: int) -> None:
    """The port mapper that Erlang started for this node, and only that one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                is_epmd = b"epmd" in (entry / "cmdline").read_bytes()
                if is_epmd and f"ERL_EPMD_PORT={port}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGTERM)

"""Listeners: the addresses of a server, taken before anything else is done."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

from smista.server.errors import CannotListen

BACKLOG = 2048
HOSTS_FILE = Path("/etc/hosts")


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A socket that listens; who connects waits until somebody accepts. `flag` names the port on the command line.

    Not only bound: of two servers that bind a port at once, with SO_REUSEADDR, both succeed, and the one that listens
    later finds out then.
    """
    try:
        [family, kind, protocol, _, address] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise _cannot_listen(error, host, port, flag) from None
    return listener


@contextlib.contextmanager
def beginning_to_accept(listener: socket.socket, flag: str) -> Iterator[None]:
    """Around what begins to accept on `listener`: says which one it is that cannot."""
    host, port = listener.getsockname()[:2]
    try:
        yield
    except OSError as error:
        raise _cannot_listen(error, host, port, flag) from None


def _cannot_listen(error: OSError, host: str, port: int, flag: str) -> CannotListen:
    why = error.strerror or error
    return CannotListen(f"Cannot listen on {host}, port {port}: {why}; {_cure(error, flag)}.")


def _cure(error: OSError, flag: str) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "give an address of this machine by --host: 127.0.0.1 for itself alone, 0.0.0.0 for all it has"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"choose a port from 1024 up by {flag}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "let the process open more files"
    return f"stop what is listening there, or choose another address by --host or port by {flag}"


def is_exposed(listener: socket.socket) -> bool:
    """Whether others than this machine can reach it."""
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def names_of_this_machine() -> set[str]:
    """Its host name, and what /etc/hosts calls it beside that: the full name, also of a pod. Nothing is looked up that
    others could answer."""
    own = socket.gethostname().lower()
    names = {own}
    with contextlib.suppress(OSError):
        for line in HOSTS_FILE.read_text(errors="replace").splitlines():
            _, *found = line.partition("#")[0].lower().split() or [""]
            if own in found:
                names.update(found)
    return names


def shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""Fetch what tests drive and pip does not know: amqplib for node, rabbitmq-c's command line, a browser.

`python -m tools.test_clients` fetches what is missing; the tests call the same functions. Each returns why it cannot be
had on this machine, or nothing.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv" / "share" / "smista-test-clients"
"""With the environment, so that `make clean` takes it along."""
AMQPLIB = "amqplib@2.3.1"
AMQP_TOOLS = ("amqp-publish", "amqp-consume", "amqp-get", "amqp-declare-queue", "amqp-delete-queue")


def main() -> None:
    for name, fetch in (("amqplib", fetch_amqplib), ("amqp-tools", fetch_amqp_tools), ("chromium", fetch_chromium)):
        print(f"{name}: {fetch() or 'there'}")


def fetch_amqplib() -> str | None:
    """Have amqplib under `FOLDER`, for node to be started there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / "amqplib.version"
    with open(FOLDER / "lock", "w") as gate:
        # Several workers may want it at once.
        fcntl.flock(gate, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == AMQPLIB:
            return None
        install = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--silent",
            "--prefix",
            str(FOLDER),
            AMQPLIB,
        ]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"npm could not install {AMQPLIB}: {done.stderr.strip()[-200:]}"
        stamp.write_text(AMQPLIB)
    return None


def fetch_amqp_tools() -> str | None:
    """Have rabbitmq-c's command line tools, which Debian packages as amqp-tools."""
    return _have_package("amqp-tools", AMQP_TOOLS)


def fetch_chromium() -> str | None:
    """Have Chromium, by Debian's package of that name."""
    return _have_package("chromium", ("chromium",))


def _have_package(package: str, programs: Iterable[str]) -> str | None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as gate:
        # Several workers may want it at once.
        fcntl.flock(gate, fcntl.LOCK_EX)
        if all(map(shutil.which, programs)):
            return None
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return f"{package} is not installed, and only root can do that, on Debian"
        install = ("install", "--yes", "--no-install-recommends", package)
        done = _apt_get(*install)
        if done.returncode:
            # A new machine may know no packages yet, or only those of the day when it was made.
            _apt_get("update")
            done = _apt_get(*install)
        return None if done.returncode == 0 else f"apt-get could not install {package}: {done.stderr.strip()[-200:]}"


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


if __name__ == "__main__":
    main()

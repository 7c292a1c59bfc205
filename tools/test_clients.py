"""Fetch the clients that the AMQP tests drive and that pip does not know: amqplib for node, rabbitmq-c's command line.

`python -m tools.test_clients` fetches what is missing; the tests call the same functions. Each returns why it cannot be
had on this machine, or nothing.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv" / "share" / "smista-test-clients"
"""With the environment, so that `make clean` takes it along."""
AMQPLIB = "amqplib@2.3.1"
AMQP_TOOLS = ("amqp-publish", "amqp-consume", "amqp-get", "amqp-declare-queue", "amqp-delete-queue")


def main() -> None:
    for name, fetch in (("amqplib", fetch_amqplib), ("amqp-tools", fetch_amqp_tools)):
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
    if all(map(shutil.which, AMQP_TOOLS)):
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "amqp-tools are not installed, and only root can do that, on Debian"
    done = subprocess.run(
        ["apt-get", "install", "--yes", "--no-install-recommends", "amqp-tools"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    return None if done.returncode == 0 else f"apt-get could not install amqp-tools: {done.stderr.strip()[-200:]}"


if __name__ == "__main__":
    main()

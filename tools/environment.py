"""Make or refresh `.venv`, the virtual environment that every `make` target runs in.

`python -m tools.environment` returns at once when the environment fits the checkout. It fits when the
stamp inside it, written as the last step of making it, holds the checkout's own fingerprints:

- `locked`: requirements.lock, the interpreter and the place of the checkout. If it differs, all is remade.
- `project`: pyproject.toml. If only this differs, only the editable install of Smista itself is repeated.

Only the standard library is used, since nothing else is there yet.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"


def main() -> None:
    # Two targets started at once in one checkout must not both make the environment.
    with open(ROOT / ".venv.lock", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        refresh()


def refresh() -> None:
    stamp_file = VENV / "smista-stamp.json"
    stamp: dict[str, str] = json.loads(stamp_file.read_text()) if stamp_file.exists() else {}
    wanted = {
        "locked": fingerprint(LOCK.read_bytes(), sys.version.encode(), os.fsencode(VENV)),
        "project": fingerprint(PROJECT.read_bytes()),
    }
    if stamp == wanted:
        return
    # Gone while we work, so that an interrupted run is not taken for a finished one.
    stamp_file.unlink(missing_ok=True)
    if stamp.get("locked") != wanted["locked"]:
        print("making .venv from requirements.lock: some minutes, once", flush=True)
        create(VENV)
        pip_install("--require-hashes", "--requirement", str(LOCK))
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp_file.write_text(json.dumps(wanted))


def fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def create(folder: Path) -> None:
    """Make an empty virtual environment that has pip, in place of whatever is at `folder`."""
    if importlib.util.find_spec("ensurepip") is None:
        install_ensurepip()
    run(sys.executable, "-m", "venv", "--clear", str(folder))


def install_ensurepip() -> None:
    """Debian ships Python without it, in a package of its own."""
    package = f"python3.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"{sys.executable} cannot make virtual environments. Run: sudo apt-get install {package}")
    print(f"installing {package}, without which {sys.executable} makes no virtual environments", flush=True)
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", package)


def pip_install(*arguments: str) -> None:
    run(str(VENV / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments)


def run(*command: str) -> None:
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(f"failed with status {status}: {' '.join(command)}")


if __name__ == "__main__":
    main()

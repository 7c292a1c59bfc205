"""Make or refresh `.venv`, the virtual environment that every `make` target runs in.

`python -m tools.environment run` puts in what the broker needs to run, in seconds; `python -m tools.environment` adds
what its tests need: Spark, every client, in minutes. Both return at once when the environment fits the checkout. It
fits when the stamp inside it, written as the last step of making it, holds the checkout's own fingerprints:

- `locked`: requirements.lock, the interpreter and the place of the checkout. If it differs, all is remade.
- `project`: pyproject.toml. If only this differs, only the editable install of Smista itself is repeated.
- `has`: "run" or "all".

Which packages are for running is read from requirements.lock, which says above each one what needs it.

Only the standard library is used, since nothing else is there yet.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"


def main(arguments: list[str]) -> None:
    # Two targets started at once in one checkout must not both make the environment.
    with open(ROOT / ".venv.lock", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        refresh("run" if arguments == ["run"] else "all")


def refresh(has: str) -> None:
    stamp_file = VENV / "smista-stamp.json"
    stamp: dict[str, str] = json.loads(stamp_file.read_text()) if stamp_file.exists() else {}
    wanted = {
        "locked": fingerprint(LOCK.read_bytes(), sys.version.encode(), os.fsencode(VENV)),
        "project": fingerprint(PROJECT.read_bytes()),
        "has": "all" if stamp.get("has") == "all" else has,
    }
    if stamp == wanted:
        return
    # Gone while we work, so that an interrupted run is not taken for a finished one.
    stamp_file.unlink(missing_ok=True)
    if stamp.get("locked") != wanted["locked"]:
        print("making .venv from requirements.lock, once", flush=True)
        create(VENV)
        stamp = {}
    if wanted["has"] == "all" and stamp.get("has") != "all":
        print("adding Spark and what the tests need: some minutes, once", flush=True)
        pip_install("--require-hashes", "--requirement", str(LOCK))
    elif not stamp:
        # What is run is compiled when it is first run.
        with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
            lock.write(to_run(LOCK.read_text(), tomllib.loads(PROJECT.read_text())))
            lock.flush()
            pip_install("--no-compile", "--no-deps", "--require-hashes", "--requirement", lock.name)
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp_file.write_text(json.dumps(wanted))


def to_run(lock: str, project: dict[str, Any]) -> str:
    """The part of a lock file that a broker needs: what it depends on, pyarrow, and what installs it."""
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"], "editables", "pyarrow"]
    wanted = set(map(canonical, asked))
    entries = {
        name: (set(reasons.split(", ")), entry)
        for entry, reasons, name in re.findall(r"^(# for (.+)\n([\w.-]+)==(?:.*\\\n)*.*\n)", lock, re.MULTILINE)
    }
    while more := {name for name, (reasons, _) in entries.items() if reasons & wanted} - wanted:
        wanted |= more
    return "".join(entry for name, (_, entry) in entries.items() if name in wanted)


def canonical(requirement: str) -> str:
    """The name at the head of a requirement, in the one spelling that compares equal."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def create(folder: Path) -> None:
    """Make an empty virtual environment in place of whatever is at `folder`. It gets a pip of its own, which takes 5 s,
    only if this Python has none."""
    if importlib.util.find_spec("pip") is not None:
        run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
        return
    if importlib.util.find_spec("ensurepip") is None:
        install_ensurepip()
    run(sys.executable, "-m", "venv", "--clear", str(folder))


def pip(folder: Path) -> tuple[str, ...]:
    """The command that installs into a virtual environment."""
    python = str(folder / "bin/python")
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "--python", python)
    return (python, "-m", "pip")


def install_ensurepip() -> None:
    """Debian ships Python without it, in a package of its own."""
    package = f"python3.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"{sys.executable} cannot make virtual environments. Run: sudo apt-get install {package}")
    print(f"installing {package}, without which {sys.executable} makes no virtual environments", flush=True)
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", package)


def pip_install(*arguments: str) -> None:
    run(*pip(VENV), "install", "-qq", "--disable-pip-version-check", *arguments)


def run(*command: str) -> None:
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(f"failed with status {status}: {' '.join(command)}")


if __name__ == "__main__":
    main(sys.argv[1:])

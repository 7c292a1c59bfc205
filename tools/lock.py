"""Write `requirements.lock`: every package we run or develop with, at one version, with its hashes.

`make lock` asks the registry that pip is configured with, on the machine it runs on, for

1. the newest versions that together satisfy pyproject.toml (to run, to build and to develop);
2. the wheel of each of those versions for every platform and Python in the tables below; for a package that is
   published as source alone (PySpark), that archive instead. A package that pyproject.toml asks for under a marker
   (atheris) keeps it, and may be missing where the marker says it is not wanted.

`pip install --require-hashes` then installs exactly those files, wherever it finds them: the lock file
holds no address, so a mirror, an offline folder and the public registry serve equally. Only pip's public
options are used. Run it from the oldest Python we support: newer ones need no package beyond its set.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import environment
from tools.environment import canonical

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Best first, as pip expects them; the number is the glibc a wheel needs.
MANYLINUX = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
PLATFORMS = {
    "linux x86_64": tuple(f"{glibc}_x86_64" for glibc in MANYLINUX),
    "linux aarch64": tuple(f"{glibc}_aarch64" for glibc in MANYLINUX),
    "macos arm64": ("macosx_14_0_arm64",),
}
HEADER = """\
# Made by `make lock` (tools/lock.py). Do not edit: change pyproject.toml and run it again.
# Hashes are of the wheels for: {platforms}; Python {pythons}.
"""


@dataclass(slots=True)
class Package:
    name: str
    version: str
    needs: frozenset[str]
    is_source: bool
    hashes: set[str] = field(default_factory=set)

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"


def main() -> None:
    asked = asked_for(tomllib.loads(environment.PROJECT.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        pip = Pip(Path(folder))
        print("resolving", flush=True)
        packages = {package.name: package for package in pip.resolve(asked)}
        markers = dict(map(marked, asked))
        wheels = [package for package in packages.values() if not package.is_source]
        everywhere = [package.pin for package in wheels if not markers.get(package.name)]
        elsewhere = [package.pin for package in wheels if markers.get(package.name)]
        for platform, tags in PLATFORMS.items():
            for python in PYTHONS:
                print(f"hashing for {platform}, Python {python}", flush=True)
                found = [*pip.wheels(everywhere, tags=tags, python=python)]
                for pin in elsewhere:
                    found += pip.wheels([pin], tags=tags, python=python, may_lack=True)
                for package in found:
                    packages[package.name].hashes |= package.hashes
    environment.LOCK.write_text(render(packages.values(), markers=markers))
    print(f"wrote {len(packages)} packages to {environment.LOCK.name}")


def asked_for(project: dict[str, Any]) -> list[str]:
    """Every requirement pyproject.toml names: to build, to run with and without the extras, to develop."""
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    return lines + [line for group in groups for line in group]


class Pip:
    """pip in an environment of its own, so that what is installed here has no say."""

    def __init__(self, folder: Path) -> None:
        environment.create(folder / "venv")
        self.command = environment.pip(folder / "venv")
        self.nowhere = folder / "nowhere"  # pip insists on a target for foreign wheels, dry run or not

    def resolve(self, requirements: list[str]) -> Iterator[Package]:
        return self._report(*requirements)

    def wheels(
        self, pins: list[str], *, tags: tuple[str, ...], python: str, may_lack: bool = False
    ) -> Iterator[Package]:
        platforms = [f"--platform={tag}" for tag in tags]
        foreign = ["--implementation=cp", f"--python-version={python}", f"--target={self.nowhere}"]
        return self._report("--no-deps", "--only-binary=:all:", *foreign, *platforms, *pins, may_lack=may_lack)

    def _report(self, *arguments: str, may_lack: bool = False) -> Iterator[Package]:
        options = ["-qq", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--report=-"]
        command = [*self.command, "install", *options, *arguments]
        stderr = subprocess.DEVNULL if may_lack else None
        result = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=stderr, text=True)
        if result.returncode != 0:
            if may_lack:
                return iter(())
            sys.exit(f"pip could not resolve: {' '.join(arguments)}")
        return map(package_of, json.loads(result.stdout)["install"])


def package_of(item: dict[str, Any]) -> Package:
    metadata = item["metadata"]
    needs = (line for line in metadata.get("requires_dist", ()) if "extra ==" not in line)
    return Package(
        name=canonical(metadata["name"]),
        version=metadata["version"],
        needs=frozenset(map(canonical, needs)),
        is_source=not item["download_info"]["url"].endswith(".whl"),
        hashes={item["download_info"]["archive_info"]["hashes"]["sha256"]},
    )


def marked(requirement: str) -> tuple[str, str]:
    """Its name, and the marker it stands under, if any."""
    return canonical(requirement), requirement.partition(";")[2].strip()


def render(packages: Iterable[Package], *, markers: dict[str, str]) -> str:
    """`markers` has the marker, mostly none, of every package that was asked for by name."""
    by_name = sorted(packages, key=lambda package: package.name)
    text = HEADER.format(platforms=", ".join(PLATFORMS), pythons=", ".join(PYTHONS))
    for package in by_name:
        needed_by = [other.name for other in by_name if package.name in other.needs]
        reasons = ["pyproject.toml"] * (package.name in markers) + needed_by
        hashes = [f"--hash=sha256:{digest}" for digest in sorted(package.hashes)]
        text += f"# for {', '.join(reasons)}\n"
        marker = markers.get(package.name, "")
        text += " \\\n    ".join([f"{package.pin} ; {marker}" if marker else package.pin, *hashes]) + "\n"
    return text


if __name__ == "__main__":
    main()

"""What the repository itself promises: one version, a complete lock file, no addresses of registries."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import smista
from tools import environment, lock

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

# In two parts, so that this file does not name what it forbids.
REGISTRY_HOSTS = [
    "".join(parts)
    for parts in (
        ("py", "pi.org"),
        ("python", "hosted"),
        ("npm", "js.org"),
        ("npm", "js.com"),
        ("yarn", "pkg.com"),
        ("crates", ".io"),
        ("repo", ".maven"),
        ("maven", ".org"),
        ("conda", ".anaconda"),
        ("docker", ".io"),
        ("gh", "cr.io"),
    )
]
REGISTRY_OPTIONS = ["--" + option for option in ("index-url", "extra-index-url", "find-links")]
MACHINE_PATHS = re.compile(r"(?<![\w.}*-])/(?:work|root|home|Users)/\w+")


def committed_texts() -> Iterator[tuple[str, str]]:
    """Name and content of every text file that is in the repository, or would be after `git add`."""
    # A checkout may belong to another user than the one who tests it, as in a container.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    listing = subprocess.check_output([*git, "--cached", "--others", "--exclude-standard"], text=True)
    for name in filter(None, listing.split("\0")):
        try:
            yield name, (ROOT / name).read_text()
        except (FileNotFoundError, UnicodeDecodeError):
            continue  # deleted but not yet committed so; or not text


def test_the_package_and_the_project_file_tell_the_same_version() -> None:
    assert smista.__version__ == PROJECT["project"]["version"]


def test_no_file_names_a_package_registry() -> None:
    forbidden = REGISTRY_HOSTS + REGISTRY_OPTIONS
    found = [(name, word) for name, text in committed_texts() for word in forbidden if word in text.lower()]
    assert found == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    found = [(name, path) for name, text in committed_texts() for path in MACHINE_PATHS.findall(text)]
    assert found == []


def test_the_lock_file_holds_only_exact_pins_with_hashes() -> None:
    assert "://" not in LOCK
    lines = re.sub(r"#.*\n", "", LOCK).replace("\\\n", "").splitlines()
    pin = re.compile(r"[a-z0-9-]+==[\w.]+( ; [\w\s.'<=]+)?(\s+--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in lines if not pin.fullmatch(line)] == []


def test_the_lock_file_pins_everything_the_project_file_asks_for() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", LOCK, re.MULTILINE))
    assert {environment.canonical(line) for line in lock.asked_for(PROJECT)} <= pinned


def test_every_dependency_has_its_reason_written_down() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    explained = set(re.findall(r"^\| ([\w-]+) \| .+ \|$", page, re.MULTILINE)) - {"package"}
    assert explained == {environment.canonical(line) for line in lock.asked_for(PROJECT)}


def test_make_run_says_how_to_use_what_it_starts() -> None:
    recipe = subprocess.check_output(["make", "--dry-run", "--directory", str(ROOT), "run"], text=True)
    said = re.findall(r'^echo "  \.venv/bin/(\w+) (\S+) ', recipe, re.MULTILINE)
    assert said == [("python", "examples/first_program.py"), ("smista", "--help")]
    assert (ROOT / "examples/first_program.py").exists()


def test_running_needs_what_the_project_depends_on_and_none_of_what_tests_need() -> None:
    names = set(re.findall(r"^([\w.-]+)==", environment.to_run(LOCK, PROJECT), re.MULTILINE))
    assert names >= {environment.canonical(line) for line in PROJECT["project"]["dependencies"]}
    assert names >= {"hatchling", "pyarrow", "pygments", "shellingham"}
    developing = {environment.canonical(line) for line in PROJECT["dependency-groups"]["dev"]} - {"editables"}
    assert not names & (developing | {"pyspark", "pandas", "grpcio", "botocore"})


def test_a_lock_file_for_running_has_its_hashes() -> None:
    part = environment.to_run(LOCK, PROJECT)
    entries = re.findall(r"^[\w.-]+==(?:.*\\\n)*.*\n", part, re.MULTILINE)
    assert len(entries) > 20
    assert all("--hash=sha256:" in entry and entry in LOCK for entry in entries)

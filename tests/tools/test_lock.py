"""The locks are those of the lists, whole, and of one solution; `make setup` refuses others."""

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tools.test_environment import project  # noqa: F401 - a fixture
from tools.environment import normal, pins
from tools.lock import LISTS, LOCKS, head

NAMES = sorted(path.stem for path in LISTS.glob("*.txt"))


def locks_of(name: str) -> list[Path]:
    """One, or that of a CPU and that of a GPU."""
    one = LOCKS / f"{name}.txt"
    return [one] if one.exists() else [LOCKS / f"{name}-cpu.txt", LOCKS / f"{name}-gpu.txt"]


def locked(lock: Path) -> dict[str, set[str]]:
    """Names and versions, without what says how a version was built."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.]+)", lock.read_text(), re.MULTILINE):
        found.setdefault(normal(name), set()).add(version)
    return found


def needs(package: str) -> set[str]:
    """What an installed package requires here, without its extras."""
    try:
        required = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return set()
    found = map(Requirement, required)
    return {normal(r.name) for r in found if r.marker is None or r.marker.evaluate({"extra": ""})}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_what_its_list_asks_for(name: str) -> None:
    """`make lock` renews it. What an earlier list has already is in its lock."""
    earlier = {} if name in ("common", "dev") else locked(LOCKS / "common.txt") | locked(LOCKS / "dev.txt")
    for lock in locks_of(name):
        there = earlier | locked(lock)
        asked = [re.sub(r"\[.*\]", "", pin).split("==") for pin in pins(name)]
        assert [pin for pin in asked if there.get(normal(pin[0])) != {pin[1]}] == []
        assert lock.read_text().startswith(head(LISTS / f"{name}.txt"))


def test_each_package_has_checksums_and_the_same_versions_in_all_locks() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS.glob("*.txt"):
        blocks = re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]
        assert all(re.search(r"--hash=sha256:\w{64}\n", block) for block in blocks), lock.name
        for name, found in locked(lock).items():
            assert versions.setdefault(name, found) == found, (lock.name, name)


def test_the_locks_have_what_their_packages_need() -> None:
    """As far as they are installed here: `--no-deps` installs nothing that is not locked."""
    locks = [lock for name in NAMES for lock in locks_of(name) if not lock.stem.endswith("-gpu")]
    entries = re.findall(r"^([\w.-]+.*?) \\$", "".join(lock.read_text() for lock in locks), re.MULTILINE)
    asked = [Requirement(entry) for entry in entries]
    here = {normal(entry.name) for entry in asked if entry.marker is None or entry.marker.evaluate()}
    assert {name: lacks for name in here if (lacks := needs(name) - here)} == {}


def test_no_lock_is_left_of_a_list_that_is_gone() -> None:
    assert {lock for name in NAMES for lock in locks_of(name)} == set(LOCKS.glob("*.txt"))


def test_a_changed_list_is_refused_until_it_is_locked(project: Path) -> None:  # noqa: F811
    with (project / "requirements/common.txt").open("a") as file:
        file.write("einops==0.8.1\n")
    done = subprocess.run(["tools/setup.sh"], cwd=project, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: requirements/common.txt changed after its lock was written: make lock, or make setup LOCKED=no\n"
    )
    assert not (project / ".venv").exists()


def test_a_comment_needs_no_new_lock(project: Path) -> None:  # noqa: F811
    """Then only Python is missing."""
    with (project / "requirements/common.txt").open("a") as file:
        file.write("\n  # a reason\n")
    done = subprocess.run(
        ["tools/setup.sh"],
        cwd=project,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": "no"},
    )
    assert done.returncode == 1 and "needs Python 3.11" in done.stderr

"""The locks match the lists, are whole and of one solution. `make setup` refuses others."""

import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from shutil import which

import pytest
from packaging.requirements import Requirement

from engine.tests.tools.test_setup import project  # noqa: F401 - a fixture
from tools.environment import normalize, pins
from tools.lock import LISTS, LOCKS, header

from tools.lock import CPU_WHEELS  # isort: skip

NAMES = sorted(path.stem for path in LISTS.glob("*.txt"))


def locks_of(name: str) -> list[Path]:
    """One, or that of a CPU and that of a GPU."""
    one = LOCKS / f"{name}.txt"
    return [one] if one.exists() else [LOCKS / f"{name}-cpu.txt", LOCKS / f"{name}-gpu.txt"]


def locked(lock: Path) -> dict[str, set[str]]:
    """Return names and versions without their build tags."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.]+)", lock.read_text(), re.MULTILINE):
        found.setdefault(normalize(name), set()).add(version)
    return found


def needs(package: str) -> set[str]:
    """Return the requirements of an installed package without its extras."""
    try:
        required = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return set()
    found = map(Requirement, required)
    return {normalize(r.name) for r in found if r.marker is None or r.marker.evaluate({"extra": ""})}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_what_its_list_asks_for(name: str) -> None:
    """`make lock` renews it. What an earlier list has already is in its lock."""
    earlier = {} if name in ("common", "dev") else locked(LOCKS / "common.txt") | locked(LOCKS / "dev.txt")
    for lock in locks_of(name):
        there = earlier | locked(lock)
        asked = [re.sub(r"\[.*\]", "", pin).split("==") for pin in pins(name)]
        assert [pin for pin in asked if there.get(normalize(pin[0])) != {pin[1]}] == []
        assert lock.read_text().startswith(header(LISTS / f"{name}.txt"))


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
    here = {normalize(entry.name) for entry in asked if entry.marker is None or entry.marker.evaluate()}
    assert {name: lacks for name in here if (lacks := needs(name) - here)} == {}


MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]


def entries(machine: tuple[str, str], locks: Iterable[Path]) -> dict[str, list[str]]:
    """Return the checksums of each package of these locks. None occurs twice in one lock."""
    system = {"linux": "Linux", "darwin": "Darwin"}[machine[0]]
    there = {"sys_platform": machine[0], "platform_machine": machine[1], "platform_system": system}
    found: dict[str, list[str]] = {}
    for lock in locks:
        of_lock: dict[str, list[str]] = {}
        for block in re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]:
            asked = Requirement(block.partition("\\")[0].strip())
            if asked.marker is None or asked.marker.evaluate(there):
                assert asked.name not in of_lock, f"{asked.name} is twice in {lock.name} for {machine}"
                of_lock[asked.name] = re.findall(r"--hash=sha256:(\w{64})\n", block.replace(" \\", ""))
        found |= of_lock
    return found


@pytest.mark.parametrize("machine", MACHINES, ids="-".join)
def test_each_package_is_locked_once_for_each_machine(machine: tuple[str, str]) -> None:
    cpu = [lock for lock in LOCKS.glob("*.txt") if not lock.stem.endswith("-gpu") and lock.stem != "docs"]
    found = entries(machine, cpu)
    assert found and all(found.values())
    of = "tensorflow-cpu" if machine == ("linux", "x86_64") else "tensorflow"
    assert [name for name in found if name in ("tensorflow", "tensorflow-cpu")] == [of]
    wheels = CPU_WHEELS.read_text()
    built = {line[:64] for line in wheels.splitlines() if line.endswith(f"_{machine[1]}.whl")}
    assert (machine[0] != "linux") or built & set(found["torch"])


@pytest.mark.parametrize("machine", MACHINES, ids="-".join)
def test_the_lists_ask_for_what_is_locked(machine: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An active environment is compared with the list of its machine."""
    monkeypatch.setattr(sys, "platform", machine[0])
    monkeypatch.setattr(platform, "machine", lambda: machine[1])
    for name in NAMES:
        lock = next(
            lock for lock in locks_of(name) if not lock.stem.endswith("-gpu") or name.endswith("-gpu")
        )
        locks = [
            lock,
            *(LOCKS / f"{first}.txt" for first in ("common", "dev") if lock.stem not in (first, "docs")),
        ]
        there = entries(machine, dict.fromkeys(locks))
        wanted = {normalize(re.split(r"[\[=]", pin)[0]) for pin in pins(name)}
        assert wanted <= there.keys(), name


def test_set_up_reads_the_locks_with_the_tools_of_macos(project: Path, tmp_path: Path) -> None:  # noqa: F811
    """macOS has no `sha256sum`, and its `head` has no `-c -1`. Only Python's venv is missing."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "env", "grep", "sed", "uname"):
        (tools / name).symlink_to(str(which(name)))
    sums = f"#!{sys.executable}\nimport hashlib, sys\nassert sys.argv[1:] == ['-a', '256']\n"
    (tools / "shasum").write_text(sums + "print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), '-')\n")
    (tools / "python3").write_text('#!/bin/bash\n[ "$1" = -c ] && [[ $2 = *version_info* ]]\n')
    for name in ("shasum", "python3"):
        (tools / name).chmod(0o755)
    command = ["bash", "tools/setup.sh"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env={"PATH": str(tools)})
    assert "needs Python's venv" in done.stderr, done.stderr


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

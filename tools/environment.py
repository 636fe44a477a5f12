"""Say which environment `make` uses: the active one, if it has all that the project needs, else .venv.

That is the environment of conda or venv that is active (`$VIRTUAL_ENV`, `$CONDA_PREFIX`). It is used as it is, and nothing is installed,
if it has every package of requirements/common.txt and dev.txt, and of one framework (FRAMEWORK=NAME: of that one), as pinned there.
Printed is the folder of its programs. Otherwise .venv is made and used, and one line says what the active one lacks.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LISTS = Path(__file__).resolve().parent.parent / "requirements"

ASK = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
"""What the other Python is asked."""


def main() -> int:
    """Print the folder of programs to use; returns the exit code."""
    own = LISTS.parent / ".venv"
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""
    if active and Path(active).resolve() != own.resolve():
        missing = lacking(installed(Path(active)), os.environ.get("FRAMEWORK", ""))
        if not missing:
            print(Path(active) / "bin")
            return 0
        if not own.exists():
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            print(
                f"the active environment {active} lacks {', '.join(missing[:3])}{more}: .venv is made and used instead",
                file=sys.stderr,
            )
    print(".venv/bin")
    return 0


def installed(prefix: Path) -> dict[str, str]:
    """Names and versions of an environment's packages; empty if it has no Python."""
    try:
        said = subprocess.run([prefix / "bin/python", "-c", ASK], capture_output=True, text=True, timeout=60)
    except OSError:
        return {}
    return {normal(name): version for name, version in map(str.split, said.stdout.splitlines())}


def lacking(there: dict[str, str], framework: str) -> list[str]:
    """What has to be installed, as the lists write it; of several frameworks, of the one that lacks least."""
    frameworks = {path.parent.name for path in LISTS.parent.glob("src/models/*/__init__.py")}
    asked = {framework} & frameworks or frameworks
    least = min((absent(there, lists_of(name)) for name in sorted(asked)), key=len)
    return [*absent(there, ["common", "dev", "engine"]), *least]


def lists_of(framework: str) -> list[str]:
    """Its lists, with the one for CPUs or the one for GPUs, as the environment was made."""
    return [framework, f"{framework}-dev", f"{framework}-cpu|{framework}-gpu"]


def absent(there: dict[str, str], lists: list[str]) -> list[str]:
    """What these lists ask for and is not there; of `a|b` the one of which less is missing counts."""
    found = []
    for names in lists:
        choices = [[pin for pin in pins(name) if not has(there, pin)] for name in names.split("|")]
        found += min(choices, key=len)
    return found


def pins(name: str) -> Iterator[str]:
    """Each `package==version` that a list requires on this machine; none if the list does not exist."""
    path = LISTS / f"{name}.txt"
    machine = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    for line in path.read_text().splitlines() if path.exists() else ():
        line = re.sub(r"^\./wheels/(\w+)-([^-]+)-\S+", r"\1==\2 #", line)  # a wheel of the project's own
        pin, _, marker = map(str.strip, line.split("#")[0].partition(";"))
        # a marker is an expression of Python too: https://packaging.python.org/specifications/dependency-specifiers/
        if pin and (not marker or eval(marker, {"__builtins__": {}}, machine)):
            yield pin


def has(there: dict[str, str], pin: str) -> bool:
    """Whether the package is there in that version; a build of it, `2.13.0+cpu`, is."""
    name, _, version = re.sub(r"\[.*\]", "", pin).partition("==")
    return there.get(normal(name), "").partition("+")[0] == version


def normal(name: str) -> str:
    """A name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())

"""Print the bin folder of the environment that `make` uses: the active one if it has all that the project needs, else .venv.

The active one is that of `$VIRTUAL_ENV` or `$CONDA_PREFIX`. It is used unchanged if it has every package of requirements/common.txt and
dev.txt, and of one framework (FRAMEWORK=NAME: that one), in the versions pinned there. Otherwise `make` creates .venv, and a line on stderr
names the packages that the active environment lacks.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LISTS = Path(os.environ.get("TEMPLATE_PROJECT") or Path(__file__).resolve().parents[1]) / "requirements"

QUERY = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
"""Program that prints the packages of another Python."""


def main() -> int:
    """Print the bin folder to use; return the exit code."""
    own = LISTS.parent / ".venv"
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""
    if active and Path(active).resolve() != own.resolve():
        missing = missing_pins(installed_versions(Path(active)), os.environ.get("FRAMEWORK", ""))
        if not missing:
            print(Path(active) / "bin")
            return 0
        if not own.exists():
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            print(
                f"the active environment {active} lacks {', '.join(missing[:3])}{more}: using .venv instead",
                file=sys.stderr,
            )
    print(".venv/bin")
    return 0


def installed_versions(prefix: Path) -> dict[str, str]:
    """Return the versions of an environment's packages by name; empty if it has no Python."""
    try:
        done = subprocess.run(
            [prefix / "bin/python", "-c", QUERY], capture_output=True, text=True, timeout=60
        )
    except OSError:
        return {}
    return {normalize(name): version for name, version in map(str.split, done.stdout.splitlines())}


def missing_pins(versions: dict[str, str], framework: str) -> list[str]:
    """Return the pins that are not installed, for the framework, or for the one that lacks the fewest packages."""
    frameworks = {path.parent.name for path in LISTS.parent.glob("src/models/*/__init__.py")}
    candidates = {framework} & frameworks or frameworks
    fewest = min((missing_from(versions, framework_lists(name)) for name in sorted(candidates)), key=len)
    return [*missing_from(versions, ["common", "dev", "engine"]), *fewest]


def framework_lists(framework: str) -> list[str]:
    """Return the names of a framework's lists; `a|b` stands for the one for CPUs or the one for GPUs."""
    return [framework, f"{framework}-dev", f"{framework}-cpu|{framework}-gpu"]


def missing_from(versions: dict[str, str], lists: list[str]) -> list[str]:
    """Return the pins of these lists that are not installed; of `a|b` those of the list that lacks fewer."""
    found = []
    for names in lists:
        choices = [
            [pin for pin in pins(name) if not is_installed(versions, pin)] for name in names.split("|")
        ]
        found += min(choices, key=len)
    return found


def pins(name: str) -> Iterator[str]:
    """Yield each `package==version` that a list requires on this machine; nothing if the list does not exist."""
    path = LISTS / f"{name}.txt"
    machine = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    for line in path.read_text().splitlines() if path.exists() else ():
        line = re.sub(r"^\./wheels/(\w+)-([^-]+)-\S+", r"\1==\2 #", line)  # a wheel in wheels/
        pin, _, marker = map(str.strip, line.split("#")[0].partition(";"))
        # a marker is also a Python expression: https://packaging.python.org/specifications/dependency-specifiers/
        if pin and (not marker or eval(marker, {"__builtins__": {}}, machine)):
            yield pin


def is_installed(versions: dict[str, str], pin: str) -> bool:
    """Return whether a package is installed in the pinned version; a build of it, such as `2.13.0+cpu`, counts."""
    name, _, version = re.sub(r"\[.*\]", "", pin).partition("==")
    return versions.get(normalize(name), "").partition("+")[0] == version


def normalize(name: str) -> str:
    """Return a package name in the form that the package index compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    sys.exit(main())

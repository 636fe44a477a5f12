"""Find missing packages of a framework, and a Horovod that does not fit it.

Horovod's libraries are linked against the exact frameworks they were compiled with. `make horovod` (tools/build_horovod.py) records
them and the flavours in the version, such as `0.28.1+NAME2.13.0.cpu.openmpi4.1.4.corrected1a2b3c4d`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec

PACKAGES = {"lightning": ("torch", "lightning"), "keras": ("tensorflow", "keras")}


def framework_problem(framework: str) -> str:
    """Return which packages of a framework are missing and what to type. Empty if none."""
    missing = [package for package in PACKAGES[framework] if find_spec(package) is None]
    if not missing:
        return ""
    return (
        f"framework={framework} needs {' and '.join(missing)}, which this environment does not have: "
        f"run `make setup FRAMEWORK={framework}`, or `make setup FRAMEWORK=all` for every framework."
    )


def package_problem(package: str, what: str) -> str:
    """Return a sentence if a package is missing, which `what` needs. Empty if installed."""
    command = "pip install --no-deps -r requirements/locks/finetune.txt"
    return "" if find_spec(package) else f"{what} needs the package {package}: {command}."


def cpu_build(framework: str) -> str:
    """Return name and version of the framework's package if it is only for CPUs, else ""."""
    name = {"lightning": "torch", "keras": "tensorflow-cpu"}[framework]
    version = _version(name)
    return f"{name} {version}" if version and (name != "torch" or version.endswith("+cpu")) else ""


# several distributions have the same import name
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly"),
}
METADATA_KEY = {"torch": "pytorch", "tensorflow": "tensorflow"}  # in horovod/metadata.json


def installed_frameworks() -> dict[str, str]:
    """Return the version of each installed framework, by package name (torch, tensorflow)."""
    found = {name: _version(*distributions) for name, distributions in _DISTRIBUTIONS.items()}
    return {name: version for name, version in found.items() if version}


def installed_horovod() -> str | None:
    """Return the version of the installed Horovod, or None."""
    return _version("horovod")


def _version(*names: str) -> str | None:
    found = (one.version for name in names for one in metadata.distributions(name=name))
    return next(found, None)


def horovod_problem(framework: str | None = None, mpi: bool = False) -> str | None:
    """Return what is wrong with the installed Horovod and what to type, if anything.

    A Horovod installed by the site (no `+` in its version) is checked with its own `horovod/metadata.json`; its flavours are unknown
    and not checked.

    Args:
        framework: the framework, or its package, that Horovod must be built for; None means every installed one.
        mpi: mpirun must be able to start it.
    """
    version = installed_horovod()
    if version is None:
        return "Horovod is not installed: run `make horovod` (builds once, some minutes)."
    path, noted = metadata.distribution("horovod").locate_file("horovod/metadata.json"), {}
    with suppress(OSError, ValueError):
        noted = json.loads(path.read_text())  # type: ignore[attr-defined]
    built_for = {name: noted[key] for name, key in METADATA_KEY.items() if key in noted}
    framework = PACKAGES[framework][0] if framework in PACKAGES else framework
    for name, found in installed_frameworks().items():
        if framework in (None, name) and not _same(built_for.get(name), found):
            built = built_for.get(name)
            what = f"for {name} {built}" if built else f"without {name}"
            return f"Horovod {version} was built {what}, but {name} {found} is installed: run `make horovod`."
    if mpi and "+" in version and "mpi" not in version:
        return (
            f"Horovod {version} was built without MPI, so mpirun can't start it: load or install an MPI "
            "(mpicxx) and run `make horovod`, or use launch=horovodrun or launch=srun, which need none."
        )
    return None


def _same(built_for: str | None, found: str) -> bool:
    """Return whether versions agree. The part after `+` counts only if both have one."""
    if built_for is None:
        return False
    built, installed = built_for.partition("+"), found.partition("+")
    return built[0] == installed[0] and (built[2] == installed[2] or not built[2] or not installed[2])

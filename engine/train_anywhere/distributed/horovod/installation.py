"""Check that the installed Horovod fits this environment.

Horovod's libraries are linked against the exact frameworks they were compiled with. `make horovod`
(engine/train_anywhere/distributed/horovod/build.py) builds them and records the frameworks and flavours in the version, such as
`0.28.1+NAME2.13.0.cpu.openmpi4.1.4.corrected1a2b3c4d`. This module reads only metadata and imports neither Horovod nor a framework.
"""

from __future__ import annotations

import json
import re
from importlib import metadata

HOROVOD_VERSION = "0.28.1"  # the last release (2023)

# several distributions have the same import name
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly"),
}
_PACKAGE = {
    "lightning": "torch",
    "keras": "tensorflow",
}
_SHORT = {
    "torch": "torch",
    "tensorflow": "tf",
}
METADATA_KEY = {  # in horovod/metadata.json
    "torch": "pytorch",
    "tensorflow": "tensorflow",
}


def installed_frameworks() -> dict[str, str]:
    """Return the version of each installed framework, by package name (torch, tensorflow)."""
    found = {}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def horovod_version(frameworks: dict[str, str], flavours: tuple[str, ...] = ()) -> str:
    """Return the full version of the build for these frameworks and flavours (`openmpi4.1.4`, `nccl`).

    The part after `+` follows the rules for local versions (packaging.python.org, version specifiers): lower case, separated by dots,
    numbers without leading zeros; `2.6.0a0+nv25.01` becomes `2.6.0a0.nv25.1`.
    """
    parts = [_SHORT[name] + frameworks[name] for name in _SHORT if name in frameworks]
    segments = re.split(r"[^a-z0-9]+", ".".join([*parts, *flavours]).lower())
    return HOROVOD_VERSION + "+" + ".".join(str(int(s)) if s.isdigit() else s for s in segments)


def installed_horovod() -> str | None:
    """Return the version of the installed Horovod, or None."""
    try:
        return metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return None


def horovod_problem(framework: str | None = None, mpi: bool = False, nccl: bool = False) -> str | None:
    """Return what is wrong with the installed Horovod and what to type, or None if it can be used.

    A Horovod installed by the site (no `+` in its version) is checked with its own `horovod/metadata.json`; its flavours are unknown
    and not checked.

    Args:
        framework: the framework, or its package, that Horovod must be built for; None means every installed one.
        mpi: mpirun must be able to start it.
        nccl: it must be able to reduce on GPUs.
    """
    version = installed_horovod()
    if version is None:
        return "Horovod is not installed: run `make horovod` (builds once, some minutes)."
    built_for = _built_for()
    framework = _PACKAGE.get(framework or "", framework)
    for name, found in installed_frameworks().items():
        if framework in (None, name) and not _same(built_for.get(name), found):
            return _mismatch(version, name, built_for.get(name), found)
    if mpi and "+" in version and "mpi" not in version:
        return (
            f"Horovod {version} was built without MPI, so mpirun can't start it: load or install an MPI "
            "(mpicxx) and run `make horovod`, or use launch=horovodrun or launch=srun, which need none."
        )
    if nccl and "+" in version and "nccl" not in version:
        return (
            f"Horovod {version} was built without NCCL, so gradients of GPUs would go through the CPU: make "
            "nvcc (PATH) and nccl.h (CUDA_HOME, NCCL_HOME) visible and run `make horovod`."
        )
    return None


def _built_for() -> dict[str, str]:
    """Return the framework versions with which the installed build was compiled."""
    path = metadata.distribution("horovod").locate_file("horovod/metadata.json")
    try:
        noted = json.loads(path.read_text())  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return {}
    return {name: noted[key] for name, key in METADATA_KEY.items() if key in noted}


def _same(built_for: str | None, found: str) -> bool:
    """Return whether versions agree; the part after `+` counts only if both have one (PyPI's 2.13.0 may be 2.13.0+cu130)."""
    if built_for is None:
        return False
    built, installed = built_for.partition("+"), found.partition("+")
    return built[0] == installed[0] and (built[2] == installed[2] or not built[2] or not installed[2])


def _mismatch(version: str, name: str, built_for: str | None, found: str) -> str:
    what = f"for {name} {built_for}" if built_for else f"without {name}"
    return f"Horovod {version} was built {what}, but {name} {found} is installed: run `make horovod`."

"""Compiled code of `trainer.compile=true`: torch writes it below `cluster.cache`, so that a start on another node compiles nothing.

<cluster.cache>/compiled/<key>                        one for each user, kind of node and version of torch
<local disk>/shared-<user id>/<key>                   without `cluster.cache`: for later starts on this node, see `files/node_disk.py`

If a disk fails, a line is printed and the code is compiled.
"""

import fcntl
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp

from train_anywhere import ENVIRON
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import expand, resolve_node_path
from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.files.node_disk import provide
from train_anywhere.files.removal import print_once

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder in which torch.compile looks for code, and writes it."""


@contextmanager
def keep_compiled_code(config: Config) -> Iterator[None]:
    """Let torch.compile keep its code where later starts find it, unless the user has set a folder."""
    if not config.trainer.compile or FOLDER in ENVIRON:  # torch sets it when it is imported
        yield
        return
    before = os.environ.get(FOLDER)
    try:
        folder = str(open_folder(config.cluster))
    except (OSError, ProjectError) as error:
        where = config.cluster.cache or "this node"
        print_once(f"trainer.compile=true compiles all code: none can be kept in {where} ({error}).")
        folder = mkdtemp(prefix="compiled-")
    os.environ[FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[FOLDER]
        os.environ |= {FOLDER: before} if before else {}


def open_folder(cluster: Cluster) -> Path:
    """Return the folder of compiled code, in which only this user may write: the code of others is not run.

    Raises:
        OSError: others may write there, or the disk fails or has no locks, which torch needs.
        ProjectError: the node's disk has no space.
    """
    if not cluster.cache:
        disk = os.environ.get("TRAIN_LOCAL_DISK") or cluster.local_disk
        place = Path(resolve_node_path(expand(disk)))
        return provide(place, describe_machine(), lambda folder: None, 0, 0, hold=True)[0]
    folder = Path(cluster.cache, "compiled", describe_machine())
    folder.mkdir(0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError("other users may write there")
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
    return folder


def describe_machine() -> str:
    """Return a name for what compiled code depends on: torch, Triton, Python, driver, GPU and CPU, and the user who owns it."""
    facts = [str(os.getuid()), platform.python_version(), platform.machine()]
    for package in ("triton", "pytorch-triton", "torch"):
        with suppress(metadata.PackageNotFoundError):
            facts.append(metadata.version(package))
    nvidia = Path("/proc/driver/nvidia")
    for file in (Path("/proc/cpuinfo"), nvidia / "version", *sorted(nvidia.glob("gpus/*/information"))):
        with suppress(OSError):
            facts += re.findall(r"^(?:flags|Features|NVRM version|Model)\s*:.*", file.read_text(), re.M)[:1]
    return (
        f"torch-{metadata.version('torch')}-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:12]}"
    )

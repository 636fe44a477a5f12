"""Compiled code of `trainer.compile=true`, kept in `cluster.cache`, so that a start on another node compiles nothing.

<cluster.cache>/compiled/<key>.tar                    one for each kind of node and version of torch; rank 0 writes it when a run ends
<local disk>/shared-<user id>/<key>-<state>/code      its copy, which the ranks of a node read and extend, see `files/node_disk.py`

If a disk fails, a line is printed and the code is compiled.
"""

import hashlib
import os
import platform
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp

from train_anywhere import ENVIRON
from train_anywhere.config.paths import expand, resolve_node_path
from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.node_disk import hold_lock, provide
from train_anywhere.files.removal import print_once

MOST_BYTES = 2**28
"""Bytes of code in an archive; the newest is kept."""

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder in which torch.compile looks for code, and writes it."""

FAILURES = (OSError, tarfile.TarError, ValueError, EOFError, ProjectError)


@contextmanager
def keep_compiled_code(config: Config, rank: int) -> Iterator[None]:
    """Let torch.compile use a copy of the code in `cluster.cache`, and keep what it adds.

    A folder that the user has set is used as it is.
    """
    if not config.trainer.compile or FOLDER in ENVIRON:  # torch sets it when it is imported
        yield
        return
    key, cache, folder = describe_machine(), config.cluster.cache, ""
    archive = Path(cache, "compiled", f"{key}.tar") if cache else None
    try:
        disk = os.environ.get("TRAIN_LOCAL_DISK") or config.cluster.local_disk
        folder = str(copy_to_node(archive, key, Path(resolve_node_path(expand(disk)))))
    except FAILURES as error:
        print_once(
            f"trainer.compile=true compiles all code: no copy of {archive or key} on this node ({error})."
        )
        archive = None
    os.environ[FOLDER] = folder or mkdtemp(prefix="compiled-")
    yield
    if archive and rank == 0:
        try:
            write_archive(archive, Path(folder))
        except FAILURES as error:
            print_once(
                f"the compiled code is not kept for the next start: {archive} can't be written ({error})."
            )


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


def copy_to_node(archive: Path | None, key: str, disk: Path) -> Path:
    """Return the folder of this node with the code of the archive; all processes of a node get the same one.

    Raises OSError, tarfile.TarError if it can't be copied, or belongs to another user, whose code is not run.
    """
    found = archive.stat() if archive and archive.exists() else None
    if found and found.st_uid != os.getuid():
        raise PermissionError("it belongs to another user")
    size, changed = (found.st_size, found.st_mtime_ns) if found else (0, 0)

    def fill(folder: Path) -> None:
        (folder / "code").mkdir()
        if archive and found:
            with tarfile.open(archive) as tar:
                tar.extractall(folder / "code", filter="data")

    return provide(disk, f"{key}-{changed}", fill, size, 0) / "code"


def write_archive(archive: Path, folder: Path) -> None:
    """Write the files of a folder, if some are not in the archive. Raises OSError, tarfile.TarError."""
    ready = [path for path in folder.rglob("*") if path.is_file() and _is_complete(folder, path)]
    names = {str(path.relative_to(folder)) for path in ready}
    if archive.exists():
        with tarfile.open(archive) as tar:
            if names <= {*tar.getnames()}:
                return
    content, left = BytesIO(), MOST_BYTES
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in sorted(ready, key=lambda path: path.stat().st_mtime, reverse=True):
            if (left := left - path.stat().st_size) < 0:
                break
            tar.add(path, path.relative_to(folder))
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(archive, content.getvalue())


def _is_complete(folder: Path, path: Path) -> bool:
    """Return whether no process is compiling a file, for which torch holds a lock with the first part of its name."""
    lock = folder / "locks" / f"{path.name.partition('.')[0]}.lock"
    if path.suffix == ".lock" or not lock.exists():
        return path.suffix != ".lock"
    with hold_lock(lock, wait=False) as is_free:
        return is_free

"""Find the virtual environment of a job, and create the archives that nodes unpack.

The archive of an environment is reused by later jobs with the same contents; that of the code is for one job.

<results>/.environments/<key>/environment.tar    complete or absent; facts.json is next to it
                        .<key>.<host>.<pid>/     unfinished

The archives are not compressed: shared disks read fast, and decompression would slow down each node several times.
"""

import hashlib
import io
import json
import os
import socket
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import make_absolute
from train_anywhere.files.atomic import disk_time, move, write_atomic
from train_anywhere.files.removal import MARKER, OwnedFolder, make_empty, remove
from train_anywhere.files.terminal.output import Progress, show_progress

FACTS = "facts.json"

CODE = ".packed.tar"
"""Name of a code snapshot's archive, inside the snapshot."""

KEEP_DAYS = 30
"""Days after its last use by a submission until an archive is removed. A job that starts later uses the shared environment."""

NOT_NEEDED = ("test", "idlelib", "turtledemo")
"""Folders of the standard library that training does not need."""

FORMAT = 1
"""Version of the archive format: a new number packs all environments again."""

ENVIRONMENTS, ARCHIVE = ".environments", "environment.tar"
"""Folder of packed environments in `paths.results`, and the name of each archive."""

SETTINGS = "pyvenv.cfg"

SYSTEM_FOLDERS = (Path("/usr"), Path("/"))
"""Folders of the system's Python, which each node has on its own disk."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        base: folder of the Python that created it, to be packed with it; None if that Python need not be packed.
        library: folder of the standard library in `base` and of the packages in `folder`: lib/python3.11.
        sees_base: whether packages of that Python are visible too.
    """

    folder: Path
    base: Path | None
    library: str
    sees_base: bool

    @property
    def packages(self) -> Path:
        """The folder site-packages."""
        return self.folder / self.library / "site-packages"

    def key(self) -> str:
        """Return a key of the contents by pip's records, which miss files edited by hand."""
        digest = hashlib.sha256(f"{FORMAT} {self.library} {self.base}".encode())
        for part in self._contents():
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:16]

    def _contents(self) -> Iterator[bytes]:
        """Yield the settings, the interpreter's state, installed names, and lists of files."""
        yield (self.folder / SETTINGS).read_bytes()
        yield _state(self.folder / "bin" / "python")
        for path in sorted(self.packages.iterdir()):
            yield path.name.encode()
            record = path / "RECORD"
            if path.suffix == ".dist-info":
                yield record.read_bytes() if record.exists() else _state(path)
            elif path.is_file():
                yield _state(path)


def _state(path: Path) -> bytes:
    there = path.stat()
    return f"{there.st_size} {there.st_mtime_ns}".encode()


def job_environment(cluster: Cluster) -> Path:
    """Return the folder of the ranks' environment: `cluster.venv`, or this Python's."""
    return make_absolute(cluster.venv) if cluster.venv else Path(sys.prefix)


def problem(folder: Path) -> str:
    """Return why an environment can't be packed, as the end of a sentence, or ""."""
    if (folder / "conda-meta").exists():
        return "is a conda environment, which can't be moved"
    if not (folder / SETTINGS).is_file():
        return f"is not a virtual environment (it has no {SETTINGS})"
    if not (folder / "bin" / "python").exists() or len(_libraries(folder)) != 1:
        return "has no Python, or packages for several Python versions"
    return ""


def read(folder: Path) -> Environment:
    """Return the environment in a folder for which `problem` is empty."""
    lines = (line.partition("=") for line in (folder / SETTINGS).read_text().splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    library = str(_libraries(folder)[0].relative_to(folder))
    base = Path(settings.get("home", "/usr/bin")).parent
    sees_base = settings.get("include-system-site-packages", "").lower() == "true"
    # neither the system's Python, which each node has, nor conda's, which needs its other libraries
    there = (base / library / "os.py").exists() and (base / "bin" / Path(library).name).exists()
    movable = there and base not in SYSTEM_FOLDERS and not (base / "conda-meta").exists()
    return Environment(folder, base if movable else None, library, sees_base)


def _libraries(folder: Path) -> list[Path]:
    return [p.parent for p in folder.glob("lib/python3*/site-packages")]


def pack(environment: Environment, results: Path) -> Path:
    """Return the archive of an environment, created if missing. Raises OSError."""
    key = environment.key()
    place = _place(results, key)
    if (place.path / ARCHIVE).exists():
        os.utime(place.path / MARKER)
        return place.path / ARCHIVE
    _remove_unused(results)
    own = _place(results, key, f".{key}.{socket.gethostname()}.{os.getpid()}")
    make_empty(own)
    try:
        with show_progress(f"Packing {environment.folder} for the nodes") as advance:
            facts = _write(environment, own.path / ARCHIVE, advance)
        write_atomic(own.path / FACTS, json.dumps(facts))
        with suppress(FileExistsError):  # another submission created it first
            move(own.path, place.path)
    finally:
        if own.path.exists():
            remove(own)
    return place.path / ARCHIVE


def pack_code(code: Path) -> str:
    """Pack a code snapshot into a file inside it, and return a key of its content."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    names = sorted(p.name for p in code.iterdir() if p.name not in (CODE, MARKER))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in names:
            tar.add(code / name, f"code/{name}", filter=plain)
    # trials of a study share a snapshot, and a job may be reading an existing archive
    write_atomic(code / CODE, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()[:16]


def _place(results: Path, key: str, name: str = "") -> OwnedFolder:
    return OwnedFolder(results, (ENVIRONMENTS, name or key), f"packed environment {key}")


def _remove_unused(results: Path) -> None:
    """Remove archives not used for a long time, and unfinished ones of killed submissions."""
    for path in (results / ENVIRONMENTS).glob("*"):
        unfinished = path.name.startswith(".")
        with suppress(OSError):
            age = (disk_time(results) - (path / MARKER).stat().st_mtime) / 86400
            if age > (1 if unfinished else KEEP_DAYS):
                remove(_place(results, path.name.split(".")[unfinished], path.name))


def _write(environment: Environment, archive: Path, advance: Progress) -> dict[str, object]:
    """Write the archive, and return the facts that `unpack` needs."""
    sizes: list[int] = []

    def count(info: tarfile.TarInfo) -> tarfile.TarInfo:
        sizes.append(info.size)
        advance(info.size)
        return info

    with tarfile.open(archive, "w") as tar:
        _add_environment(tar, environment, count)
        if environment.base:
            _add_base(tar, environment.base, environment, count)
    return {
        "files": len(sizes),
        "size": sum(sizes),
        "python": Path(environment.library).name,
        "base": environment.base is not None,
        "interpreter": os.path.realpath(environment.folder / "bin" / "python"),
    }


Count = Callable[[tarfile.TarInfo], tarfile.TarInfo]


def _add_environment(tar: tarfile.TarFile, environment: Environment, count: Count) -> None:
    """Add all files but the interpreter's links. A link that leads out becomes its target."""
    folder, outside = environment.folder, []

    def select(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = info.name.removeprefix("venv").lstrip("/")
        if info.issym():
            target = (folder / name).parent / info.linkname
            if name.startswith("bin/python"):
                return None
            if not target.resolve().is_relative_to(folder.resolve()):
                outside.append((target.resolve(), info.name))
                return None
            info.linkname = os.path.relpath(os.path.abspath(target), (folder / name).parent)
        return count(info)

    tar.add(folder.resolve(), "venv", filter=select)  # .venv may be a link
    for target, name in outside:
        if target.exists():
            tar.add(target, name, filter=count)


def _add_base(tar: tarfile.TarFile, base: Path, environment: Environment, count: Count) -> None:
    """Add the interpreter, its shared library and the standard library."""
    left_out = {f"base/{environment.library}/{name}" for name in NOT_NEEDED}
    if not environment.sees_base:
        left_out.add(f"base/{environment.library}/site-packages")
    version = Path(environment.library).name
    tar.add(os.path.realpath(base / "bin" / version), f"base/bin/{version}", filter=count)
    for path in sorted(base.glob("lib/libpython*.so*")):
        tar.add(path, f"base/lib/{path.name}", filter=count)
    tar.add(
        base / environment.library,
        f"base/{environment.library}",
        filter=lambda info: None if info.name in left_out else count(info),
    )

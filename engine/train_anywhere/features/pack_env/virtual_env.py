"""The virtual environment of a job: its folder, the Python that created it, and a key of its contents."""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import make_absolute

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
        folder: folder of the environment.
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
        """Return a key of the contents, from the records of pip: editing an installed file by hand does not change it."""
        digest = hashlib.sha256(f"{FORMAT} {self.library} {self.base}".encode())
        for part in self._contents():
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:16]

    def _contents(self) -> Iterator[bytes]:
        """Return the settings, the state of the interpreter, installed names, and the list of each package's files with checksums."""
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
    """Return the folder of the ranks' environment: `cluster.venv`, or that of the current Python."""
    return make_absolute(cluster.venv) if cluster.venv else Path(sys.prefix)


def problem(folder: Path) -> str:
    """Return why an environment can't be packed, as the end of a sentence; empty if it can."""
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
    return Environment(folder, base if _movable(base, library) else None, library, sees_base)


def _libraries(folder: Path) -> list[Path]:
    return [p.parent for p in folder.glob("lib/python3*/site-packages")]


def _movable(base: Path, library: str) -> bool:
    """Return whether a Python can be packed: not the system's, which each node has, nor conda's, which needs its other libraries."""
    there = (base / library / "os.py").exists() and (base / "bin" / Path(library).name).exists()
    return there and base not in SYSTEM_FOLDERS and not (base / "conda-meta").exists()

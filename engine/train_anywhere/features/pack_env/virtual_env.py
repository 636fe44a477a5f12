"""The virtual environment of a job: where it is, which Python it was made with, and a key for its contents."""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import absolute

FORMAT = 1
"""Of archives: another number packs environments again."""

ENVIRONMENTS, ARCHIVE = ".environments", "environment.tar"
"""Folder of packed environments in `paths.results`, and the name of each archive."""

SETTINGS = "pyvenv.cfg"

OF_THE_SYSTEM = (Path("/usr"), Path("/"))
"""Folders of a Python that each node has on its own disk."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        folder: of the environment.
        base: folder of the Python that it was made with, which is packed with it; None where it is used in its place.
        library: folder of the standard library in `base`, and of the packages in `folder`: lib/python3.11.
        sees_base: whether packages of that Python are seen too.
    """

    folder: Path
    base: Path | None
    library: str
    sees_base: bool

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        return self.folder / self.library / "site-packages"

    def key(self) -> str:
        """The same for the same contents, as far as pip knows them: a file that was edited by hand does not change it."""
        digest = hashlib.sha256(f"{FORMAT} {self.library} {self.base}".encode())
        for part in self._contents():
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:16]

    def _contents(self) -> Iterator[bytes]:
        """Settings, the interpreter, names of what is installed; of each package the list of its files with their checksums."""
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


def of_job(cluster: Cluster) -> Path:
    """The folder of the environment of a job's ranks: `cluster.venv`, or the one that submits."""
    return absolute(cluster.venv) if cluster.venv else Path(sys.prefix)


def problem(folder: Path) -> str:
    """Why it can't be packed, as the end of a sentence; "" if it can."""
    if (folder / "conda-meta").exists():
        return "is a conda environment, whose files name its folder"
    if not (folder / SETTINGS).is_file():
        return f"is no virtual environment (it has no {SETTINGS})"
    if not (folder / "bin" / "python").exists() or len(_libraries(folder)) != 1:
        return "has no Python, or packages of several ones"
    return ""


def read(folder: Path) -> Environment:
    """The environment in a folder without a `problem`."""
    lines = (line.partition("=") for line in (folder / SETTINGS).read_text().splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    library = str(_libraries(folder)[0].relative_to(folder))
    base = Path(said.get("home", "/usr/bin")).parent
    sees_base = said.get("include-system-site-packages", "").lower() == "true"
    return Environment(folder, base if _movable(base, library) else None, library, sees_base)


def _libraries(folder: Path) -> list[Path]:
    return [p.parent for p in folder.glob("lib/python3*/site-packages")]


def _movable(base: Path, library: str) -> bool:
    """Whether a Python can be packed: not the system's, which is on each node, nor conda's, which needs libraries beside it."""
    there = (base / library / "os.py").exists() and (base / "bin" / Path(library).name).exists()
    return there and base not in OF_THE_SYSTEM and not (base / "conda-meta").exists()

"""The sources of an engine: a copy of them with the checksums of its files, and the wheel and sdist that are built from it."""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = "train_anywhere"
NAME = "train-anywhere"
MADE = Path(".train-anywhere")
"""File of a project that `make project` wrote: its version, its choices, and the SHA-256 of each file as it was written."""

TEMPLATE = "template"
"""Folder of an sdist with the files from which projects are made."""

RENDERER = "tools/project.py"
"""Program of a template that writes the files of a project."""

SUMS = "CHECKSUMS"
"""File of an engine with the SHA-256 of its files, to find edited ones."""

NOT_SOURCE = (TEMPLATE, "__pycache__", ".pytest_cache", "build", f"{NAME}.egg-info", f"{PACKAGE}.egg-info")
"""Folders in an engine that are not its source."""

BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"
"""Calls the build backend (PEP 517) with the setuptools of this environment: nothing is downloaded."""

EPOCH = 1577836800
"""Time of every file in a wheel and an sdist, so that the same sources give the same bytes: 2020-01-01.

See https://reproducible-builds.org/docs/source-date-epoch.
"""

SETUPTOOLS = 77
"""First version of setuptools that reads engine/pyproject.toml: it has `license` as a text (PEP 639)."""


class Refusal(Exception):
    """A request that was refused before anything was written, with its message."""


def write_sums(folder: Path) -> None:
    """Write the checksums of an engine; later differences count as edits."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(file_digests(folder).items()))
    (folder / SUMS).write_text("".join(lines))


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of an engine, without those that other tools leave there."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if (
            path.is_file()
            and not set(inside.parts) & {*NOT_SOURCE}
            and path.suffix != ".pyc"
            and str(inside) != SUMS
        ):
            yield path


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, by its path relative to the folder."""
    return {str(p.relative_to(folder)): digest_of(p) for p in files(folder)}


def edited_files(folder: Path) -> list[str]:
    """Return the files that were edited, added or removed since the checksums were written."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except FileNotFoundError:
        raise Refusal(
            f"engine/{SUMS} is missing, so edited files can't be found: git checkout engine/{SUMS}"
        ) from None
    known = dict(reversed(line.split("  ", 1)) for line in lines)
    found = file_digests(folder)
    return sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))


def version_of(folder: Path) -> str:
    """Return the version of an engine's sources."""
    return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])


def fetch_sources(source: str, scratch: Path, template: bool | None = None) -> Path:
    """Return a copy of an engine's sources in `scratch`, after a check of its name.

    With `template` it has the files from which projects are made; without a value, if this project was made from them.
    """
    folder = _fetch_sources(source, scratch, MADE.exists() if template is None else template)
    try:
        wrong = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] != NAME
    except (OSError, ValueError, KeyError):
        wrong = True
    if wrong or not (folder / PACKAGE / "__init__.py").is_file():
        raise Refusal(f"FROM={source} is not an engine: its pyproject.toml does not name {NAME}.")
    return folder


def _fetch_sources(source: str, scratch: Path, template: bool) -> Path:
    target = scratch / "engine"
    path = Path(source).expanduser()
    if source.startswith("git+"):
        path = clone(source, scratch)
    elif re.fullmatch(rf"({NAME}==)?v?[0-9][\w.+!]*", source) and not path.exists():
        raise Refusal(
            f"FROM={source} is a version, and {NAME} has no release yet: what an index has under this name is not ours. "
            "Use a folder, an sdist (.tar.gz) or git+URL@COMMIT."
        )
    elif path.suffix == ".whl":
        raise Refusal(
            f"{source} is a wheel, but engine/ needs the sources: name the sdist (.tar.gz), a folder or git+URL."
        )
    if path.name.endswith(".tar.gz") and path.is_file():
        return unpack(path, target)
    for folder in (path / "engine", path):
        if (folder / PACKAGE).is_dir() and (folder / "pyproject.toml").is_file():
            for file in [*files(folder), *folder.glob(SUMS)]:
                (target / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / file.relative_to(folder))
            origin = folder / TEMPLATE if (folder / TEMPLATE).is_dir() else folder.parent
            if template and (origin / RENDERER).is_file():
                run(sys.executable, str(origin / RENDERER), "copy", str(target / TEMPLATE))
            return target
    raise Refusal(
        f"FROM={source} is not an engine: use a folder with engine/, an sdist (.tar.gz), a wheel (.whl) or git+URL."
    )


def prepare_wheel(source: str, scratch: Path) -> list[Path]:
    """Return a wheel and its sdist; only the wheel if FROM is a wheel without its sdist next to it."""
    wheel = Path(source).expanduser()
    if wheel.suffix != ".whl":
        return build(fetch_sources(source, scratch), scratch / "built")
    if not wheel.is_file() or not wheel.name.startswith(f"{PACKAGE}-"):
        raise Refusal(f"FROM={source} is not a wheel of {NAME}.")
    sdist = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".tar.gz")
    return [path for path in (wheel, sdist) if path.is_file()]


def clone(source: str, scratch: Path) -> Path:
    """Return a clone of git+URL@COMMIT."""
    url, at, commit = source.removeprefix("git+").rpartition("@")
    if not at or "/" not in url or ("/" in commit and ":" not in url):  # git+https://user@host/path
        url, commit = source.removeprefix("git+"), "HEAD"
    target = scratch / "clone"
    run("git", "clone", "--quiet", "--no-checkout", url, str(target))
    run("git", "-C", str(target), "checkout", "--quiet", commit)
    return target


def build(folder: Path, out: Path) -> list[Path]:
    """Build wheel and sdist from a copy of an engine's sources. The same sources give the same bytes."""
    with temporary_folder() as scratch:
        sources = fetch_sources(str(folder), scratch, template=(folder / TEMPLATE).is_dir())
        write_sums(sources)
        for path in sources.rglob("*"):  # a wheel has the permissions of its files
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        out.mkdir(parents=True)
        environ = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        run(builder(scratch), "-c", BUILD, str(out.resolve()), cwd=sources, env=environ, umask=0o22)
    sdist = next(out.glob("*.tar.gz"))
    normalize(sdist)
    return [next(out.glob("*.whl")), sdist]


def normalize(sdist: Path) -> None:
    """Write an sdist again in a fixed order, without the times and the owner that setuptools puts into it."""
    raw = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old, key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = EPOCH, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(raw.getvalue(), mtime=EPOCH))


def unpack(sdist: Path, target: Path) -> Path:
    """Unpack an sdist, without what the build has added, and return its folder `target`."""
    with temporary_folder() as scratch:
        try:
            with tarfile.open(sdist) as archive:
                archive.extractall(scratch, filter="data")
            top = next(p for p in scratch.iterdir() if p.is_dir())
        except (tarfile.TarError, EOFError, OSError, zlib.error, StopIteration) as error:
            raise Refusal(
                f"{sdist} can't be unpacked: {str(error).partition(':')[0] or 'it is empty'}."
            ) from None
        for name in ("PKG-INFO", "setup.cfg"):  # added by the build
            (top / name).unlink(missing_ok=True)
        for left in top.glob("*.egg-info"):
            shutil.rmtree(left)
        os.rename(top, target)
    return target


def builder(scratch: Path) -> str:
    """Return a Python with the setuptools that the engine needs: this one, or a new environment with the locked version."""
    with suppress(metadata.PackageNotFoundError):
        if int(metadata.version("setuptools").partition(".")[0]) >= SETUPTOOLS:
            return sys.executable
    locked = re.search(
        r"^setuptools==(?:.*\\\n)+.*\n", Path("requirements/locks/common.txt").read_text(), re.M
    )
    if locked is None:
        raise Refusal("this Python has no setuptools: run `make setup`.")
    (scratch / "setuptools.txt").write_text(locked[0])
    venv.create(scratch / "venv", with_pip=True)
    python = str(scratch / "venv/bin/python")
    run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(scratch / "setuptools.txt"))
    return python


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a folder in the current one or another one, so that a rename moves what is in it."""
    with tempfile.TemporaryDirectory(prefix=".engine-", dir=parent or Path.cwd()) as folder:
        yield Path(folder)


def run(*command: str, **options: Any) -> None:
    """Run a command; raise CalledProcessError with its output if it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True, **options)

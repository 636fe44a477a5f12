"""Take the engine out of the project, put it back, or replace it by another version.

    make detach                 wheel and sdist of engine/ go to wheels/, which you commit; engine/ is removed and installed from there
    make detach FROM=SOURCE     the same with another engine
    make attach                 engine/ comes back from the sdist, to be read or edited
    make update FROM=SOURCE     another version, with what has changed since this one

SOURCE: a folder that holds the engine or a project with one, an sdist (.tar.gz), a wheel (.whl), git+URL or git+URL@COMMIT, or a released
version (0.1.0). Exit codes: 0 done, 2 refused (nothing was written).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "train_anywhere"
NAME = "train-anywhere"
LIST = Path("requirements/engine.txt")
"""Requirement of a detached project, with its hash."""

SUMS = "CHECKSUMS"
"""File of an engine: the SHA-256 of each of its files, to find those that a fork has edited."""

NOT_SOURCE = ("__pycache__", ".pytest_cache", "build", f"{NAME}.egg-info", f"{PACKAGE}.egg-info")
"""Folders that tools leave in an engine."""

BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"
"""Calls the build backend (PEP 517) with the setuptools of this environment: nothing is downloaded."""


class Refused(Exception):
    """A request that was refused before anything was written; its text is the message."""


def main(words: list[str]) -> int:
    """Return the exit code."""
    os.chdir(ROOT)
    verbs = {"detach": detach, "attach": attach, "update": update, "checksums": checksums}
    try:
        verbs[words[0]](words[1] if len(words) > 1 else "")
    except Refused as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as failed:
        said = (failed.stderr or failed.stdout or "").strip().splitlines()
        print(
            f"error: {' '.join(map(str, failed.cmd[:4]))} ... failed: {said[-1] if said else failed}",
            file=sys.stderr,
        )
        return 1
    return 0


def detach(source: str) -> None:
    """Replace engine/ by an installed package."""
    if not Path("engine").is_dir():
        raise Refused(
            "this project has no engine/: it is detached already. `make update FROM=...` takes another version."
        )
    with temporary() as scratch:
        built = build(Path("engine"), scratch / "own")
        kept = digests(_unpack(built[1], scratch / "unpacked")).items()
        if lost := sorted(name for name, digest in digests(Path("engine")).items() - kept):
            names = ", ".join(lost[:5])
            raise Refused(f"engine/ has files that its sdist would not keep ({names}): move or remove them.")
        install(packed(source, scratch) if source else built)
        os.rename("engine", scratch / "removed")
    print(
        f"engine/ is removed, and {NAME} is installed. Commit the change: git add -A wheels requirements engine"
    )


def attach(_: str) -> None:
    """Bring engine/ back from the sdist."""
    if Path("engine").exists():
        raise Refused("engine/ is here already.")
    sdists = sorted(Path("wheels").glob("*.tar.gz"))
    if not sdists:
        raise Refused(
            "wheels/ has no sdist of the engine (.tar.gz), which attach unpacks: git checkout wheels"
        )
    with temporary() as scratch:
        os.rename(folder_of(str(sdists[-1]), scratch), "engine")
    for path in (LIST, *Path("wheels").glob(f"{PACKAGE}-*")):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # other wheels are kept there
        Path("wheels").rmdir()
    pip("uninstall", "--yes", NAME)
    print("engine/ is back, and is used instead of the installed package.")


def update(source: str) -> None:
    """Replace the engine by another version, and print what has changed since."""
    if not source:
        raise Refused(
            "name the new engine: make update FROM=SOURCE (a folder, .tar.gz, .whl, git+URL or version)."
        )
    with temporary() as scratch:
        if not Path("engine").is_dir():
            before = wheel_version(LIST.read_text()) if LIST.exists() else ""
            new = packed(source, scratch)
            install(new)
            report(before, wheel_version(new[0].name), changelog(new[0]))
            return
        if edited := differing(Path("engine")):
            raise Refused(
                f"these files of engine/ are not as they came: {', '.join(edited)}. Undo the edits (git checkout), move them into files of "
                "your own, or merge the new version with git."
            )
        new_engine = folder_of(source, scratch)
        write_sums(new_engine)
        before, after = (version_of(folder) for folder in (Path("engine"), new_engine))
        changes = (new_engine / "CHANGELOG.md").read_text()
        os.rename("engine", scratch / "old")
        os.rename(new_engine, "engine")
        report(before, after, changes)


def checksums(_: str) -> None:
    """Write the checksums of engine/ again, after edits that belong to the engine."""
    write_sums(Path("engine"))


def write_sums(folder: Path) -> None:
    """Write the checksums of an engine as it is now: from here on a difference is an edit."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(digests(folder).items()))
    (folder / SUMS).write_text("".join(lines))


# ---- what an engine consists of


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of an engine without those that tools leave there."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if (
            path.is_file()
            and not set(inside.parts) & {*NOT_SOURCE}
            and path.suffix != ".pyc"
            and str(inside) != SUMS
        ):
            yield path


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, by its path in the folder."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files(folder)}


def differing(folder: Path) -> list[str]:
    """Return the files that were edited, added or removed since the engine came."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except FileNotFoundError:
        raise Refused(
            f"engine/{SUMS} is missing, so edits of the engine can't be found: git checkout engine/{SUMS}"
        ) from None
    known = dict(reversed(line.split("  ", 1)) for line in lines)
    found = digests(folder)
    return sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))


def version_of(folder: Path) -> str:
    """Return the version of an engine's sources."""
    return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])


def wheel_version(name: str) -> str:
    """Return the version in a wheel's name; "" if there is none."""
    found = re.search(rf"{PACKAGE}-([^-]+)-", name)
    return found[1] if found else ""


def changelog(wheel: Path) -> str:
    """Return the changelog of a wheel, which its description ends with."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return text[max(0, text.find("# Changelog")) :]


def report(before: str, after: str, changes: str) -> None:
    """Print the sections of a changelog that are newer than a version."""
    sections = re.split(r"^(?=## )", changes, flags=re.MULTILINE)[1:]
    newer = []
    for section in sections:
        if section.split()[1] == before:
            break
        newer.append(section.rstrip())
    print(f"{NAME} {before or '(unknown)'} -> {after}\n")
    print("\n\n".join(newer) or "The changelog has nothing newer.")


# ---- where an engine comes from


def folder_of(source: str, scratch: Path) -> Path:
    """Return a copy of an engine's sources in `scratch`."""
    target = scratch / "engine"
    path = Path(source).expanduser()
    if source.startswith("git+"):
        path = clone(source, scratch)
    elif re.fullmatch(rf"({NAME}==)?[0-9][\w.+!]*", source):
        version = source.removeprefix(f"{NAME}==")
        pip(
            "download",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            NAME,
            "--dest",
            str(scratch),
            f"{NAME}=={version}",
        )
        path = next(scratch.glob("*.tar.gz"))
    elif path.suffix == ".whl":
        raise Refused(
            f"{source} is a wheel, and engine/ needs the sources: name the sdist (.tar.gz), a folder or git+URL."
        )
    if path.name.endswith(".tar.gz") and path.is_file():
        return _unpack(path, target)
    for folder in (path / "engine", path):
        if (folder / PACKAGE).is_dir() and (folder / "pyproject.toml").is_file():
            for file in [*files(folder), *folder.glob(SUMS)]:
                (target / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / file.relative_to(folder))
            return target
    raise Refused(
        f"FROM={source} is not an engine: use a folder with engine/, an sdist (.tar.gz), a wheel (.whl), git+URL or a version."
    )


def packed(source: str, scratch: Path) -> list[Path]:
    """Return a wheel and its sdist; of a wheel whose sdist is not next to it, the wheel only."""
    wheel = Path(source).expanduser()
    if wheel.suffix != ".whl":
        sources = folder_of(source, scratch)
        write_sums(sources)
        return build(sources, scratch / "built")
    if not wheel.is_file() or not wheel.name.startswith(f"{PACKAGE}-"):
        raise Refused(f"FROM={source} is not a wheel of {NAME}.")
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
    """Build wheel and sdist from a copy of an engine's sources."""
    with temporary() as scratch:
        sources = folder_of(str(folder), scratch)
        out.mkdir(parents=True)
        run(sys.executable, "-c", BUILD, str(out.resolve()), cwd=sources)
    return [next(out.glob("*.whl")), next(out.glob("*.tar.gz"))]


def _unpack(sdist: Path, target: Path) -> Path:
    with temporary() as scratch, tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
        top = next(p for p in scratch.iterdir() if p.is_dir())
        for name in ("PKG-INFO", "setup.cfg"):  # what the build has added
            (top / name).unlink(missing_ok=True)
        for left in top.glob("*.egg-info"):
            shutil.rmtree(left)
        os.rename(top, target)
    return target


def install(built: list[Path]) -> None:
    """Put wheel and sdist into wheels/, require that wheel, and install it."""
    kept = Path("wheels")
    kept.mkdir(exist_ok=True)
    copies = [Path(shutil.copy(path, scratch_name(kept, path))) for path in built]
    for old in set(kept.glob(f"{PACKAGE}-*")) - {kept / path.name for path in built}:
        old.unlink()
    for copy, path in zip(copies, built, strict=True):
        os.replace(copy, kept / path.name)
    wheel = kept / built[0].name
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    LIST.write_text(f"./{wheel} --hash=sha256:{digest}\n")
    pip("install", "--no-deps", "--force-reinstall", "--require-hashes", "--requirement", str(LIST))


def scratch_name(folder: Path, path: Path) -> Path:
    """Return the name of a copy that is not complete yet."""
    return folder / f".{path.name}.{os.getpid()}"


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a folder on the project's disk, so that a rename moves what is in it."""
    with tempfile.TemporaryDirectory(prefix=".engine-", dir=ROOT) as folder:
        yield Path(folder)


def pip(*words: str) -> None:
    """Run pip in this environment."""
    run(sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check")


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a command; raise CalledProcessError with its output if it fails."""
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

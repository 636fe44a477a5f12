"""Replace the engine of the project by another version, and build its distributions.

    make update FROM=SOURCE     install another version, and print what has changed; in a project that `make project` wrote also the files
                                of the template: those that you edited are merged, and conflicts are named
    make wheel                  build a wheel and an sdist into dist/, with the files from which `make project` makes projects

SOURCE: a folder with the engine or with a project that has one, an sdist (.tar.gz), a wheel (.whl), git+URL or git+URL@COMMIT.
Exit codes: 0 done, 1 done with conflicts, 2 refused (nothing was written).
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

try:
    import engine_sources as sources
except ModuleNotFoundError:  # imported by a test, from the folder above
    from tools import engine_sources as sources

ROOT = Path(os.environ.get("TEMPLATE_PROJECT") or Path(__file__).resolve().parents[1])
"""The project: in one that `make project` wrote, its tools run from a copy of the template."""

LIST = Path("requirements/engine.txt")
"""Requirement of a project without engine/, with the hash of its wheel, and in a comment that of its sdist."""

SDIST = "# sdist sha256:"

OLD = Path(".engine-old")
"""Engine that an update replaces."""


def main(arguments: list[str]) -> int:
    """Run a command; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    os.chdir(ROOT)
    commands = {"update": update, "checksums": checksums, "wheel": make_wheel}
    if not arguments or arguments[0] not in commands or len(arguments) > 2:
        print(f"error: type one of {', '.join(commands)}; see tools/engine.py --help.", file=sys.stderr)
        return 2
    try:
        recover()
        return commands[arguments[0]](*arguments[1:] or [""]) or 0
    except sources.Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as failed:
        lines = (failed.stderr or failed.stdout or "").strip().splitlines()
        print(
            f"error: {' '.join(map(str, failed.cmd[:4]))} ... failed: {lines[-1] if lines else failed}",
            file=sys.stderr,
        )
        return 1
    return 0


def update(source: str) -> int:
    """Replace the engine with another version and print the changes; return the exit code."""
    if not source:
        raise sources.Refusal(
            "name the new engine: make update FROM=SOURCE (a folder, .tar.gz, .whl or git+URL)."
        )
    with sources.temporary_folder() as scratch:
        if Path("engine").is_dir():
            return update_folder(source, scratch)
        required = LIST.read_text() if LIST.exists() else ""
        new = sources.prepare_wheel(source, scratch)
        if sources.MADE.exists() and not new[1:]:
            raise sources.Refusal(
                f"{source} lacks its sdist, which has the files of the template: name the sdist (.tar.gz)."
            )
        old = [
            path
            for path in Path("wheels").glob("*.tar.gz")
            if f"{SDIST}{sources.digest_of(path)}" in required
        ]
        if requirement(new) == required:
            return print_nothing_new(wheel_version(required))
        folders = [
            sources.unpack(path, scratch / f"{number}") for number, path in enumerate([*old[:1], *new[1:]])
        ]
        merge = Merge(folders[0] if old else None, folders[-1] if new[1:] else None, scratch)
        install(new)
        print_changes(
            wheel_version(required),
            wheel_version(new[0].name),
            changelog(new[0]),
            (folders[0] / "CHANGELOG.md").read_text() if old else "",
        )
        return merge.finish(wheel_version(new[0].name))


def update_folder(source: str, scratch: Path) -> int:
    """Replace engine/. A killed update is undone by the next call."""
    if edited := sources.edited_files(Path("engine")):
        raise sources.Refusal(
            f"these files of engine/ were edited: {', '.join(edited)}. Undo the edits (git checkout), move them to files outside "
            "engine/, or merge the new version with git."
        )
    new_engine = sources.fetch_sources(source, scratch)
    sources.write_sums(new_engine)
    before, after = (sources.version_of(folder) for folder in (Path("engine"), new_engine))
    if sources.file_digests(Path("engine")) == sources.file_digests(new_engine):
        return print_nothing_new(before)
    if changed := uncommitted_files(["engine"]):
        raise sources.Refusal(
            f"these files of engine/ have changes that git does not have, and the update would replace them: {', '.join(changed)}. "
            "Commit them, or undo them (git checkout)."
        )
    old, changes = ((folder / "CHANGELOG.md").read_text() for folder in (Path("engine"), new_engine))
    merge = Merge(Path("engine"), new_engine, scratch)
    os.rename("engine", OLD)  # `recover` undoes it
    os.rename(new_engine, "engine")
    shutil.rmtree(OLD, ignore_errors=True)
    print_changes(before, after, changes, old)
    return merge.finish(after)


class Merge:
    """The template's files of a new version, merged with those of a project that `make project` wrote.

    Files that the project has not edited are replaced, edited ones are merged by `git merge-file`, and deleted ones stay deleted.

    Args:
        old: unpacked engine with the template that the project was made from; None if it is not there any more.
        new: unpacked engine with the new template; None if there is none.
        scratch: folder for the files of both.

    Raises:
        Refusal: a file to be changed has changes that git does not have.
    """

    def __init__(self, old: Path | None, new: Path | None, scratch: Path) -> None:
        self.changed: dict[str, bytes | None] = {}
        self.conflicts: list[str] = []
        self.made = json.loads(sources.MADE.read_text()) if sources.MADE.exists() else {}
        if not self.made or new is None or not (new / sources.TEMPLATE).is_dir():
            self.after: dict[str, bytes] = {}
            return
        self.after = self.render(new / sources.TEMPLATE, scratch / "after")
        before = (
            self.render(old / sources.TEMPLATE, scratch / "before")
            if old and (old / sources.TEMPLATE).is_dir()
            else {}
        )
        for name in sorted(self.made["files"].keys() | self.after.keys()):
            self.merge(name, before.get(name), self.after.get(name), scratch)
        if edited := uncommitted_files([*self.changed]) if self.changed else []:
            raise sources.Refusal(
                f"the update would change files with edits that git does not have: {', '.join(edited)}. Commit them, or undo them."
            )

    def render(self, template: Path, out: Path) -> dict[str, bytes]:
        """Return the project's files as a template has them."""
        folder = render(template, self.made["choices"], out)
        return {str(path.relative_to(folder)): path.read_bytes() for path in sources.files(folder)}

    def merge(self, name: str, before: bytes | None, after: bytes | None, scratch: Path) -> None:
        """Choose what becomes of one file."""
        path, known = Path(name), self.made["files"].get(name)
        mine = path.read_bytes() if path.is_file() else None
        if mine == after or (mine is None and known) or hashlib.sha256(after or b"").hexdigest() == known:
            return  # up to date, deleted here, or unchanged in the template
        if mine is None or hashlib.sha256(mine).hexdigest() == known:
            self.changed[name] = after
        elif after is not None:
            sides = [scratch / f"{side}.txt" for side in ("yours", "before", "template")]
            for side, content in zip(sides, (mine, before or b"", after), strict=True):
                side.write_bytes(content)
            labels = [word for label in ("yours", "before", "template") for word in ("-L", label)]
            merged = subprocess.run(
                ["git", "merge-file", "-p", *labels, *map(str, sides)], capture_output=True
            )
            if merged.returncode:
                self.conflicts.append(name)
            if merged.returncode < 128:  # else a binary file: yours stays
                self.changed[name] = merged.stdout

    def finish(self, version: str) -> int:
        """Write the files and the new version, and print their names; return 1 if there are conflicts."""
        if not self.after:
            return 0
        for name, content in self.changed.items():
            path = Path(name)
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            part = partial_name(path)
            part.write_bytes(content)
            if path.exists():
                shutil.copymode(path, part)
            os.replace(part, path)
        write_made(Path(), version, self.made["choices"], self.after)
        done = [name for name in self.changed if name not in self.conflicts]
        print(f"\nFiles of the template: {', '.join(done) or 'none changed'}")
        if any(name.startswith("requirements/") for name in done):
            print("Next: make setup")
        for name in self.conflicts:
            text = f"conflict in {name}: edit it between the lines <<<<<<< and >>>>>>>, or keep yours: git checkout {name}"
            print(text, file=sys.stderr)
        return 1 if self.conflicts else 0


def render(template: Path, choices: dict[str, str], out: Path) -> Path:
    """Write the files of a project by the program of a template, and return their folder."""
    sources.run(sys.executable, str(template / sources.RENDERER), "render", str(out), json.dumps(choices))
    return out


def write_made(folder: Path, version: str, choices: dict[str, str], contents: dict[str, bytes]) -> None:
    """Write the version, the choices and the digests of a project's files."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    part = partial_name(folder / sources.MADE)
    if "://" not in choices["pages"]:  # a project of an earlier version may name a folder
        choices = {**choices, "pages": ""}
    part.write_text(json.dumps({"version": version, "choices": choices, "files": digests}) + "\n")
    os.replace(part, folder / sources.MADE)


def make_wheel(_: str) -> None:
    """Build a wheel and an sdist into dist/."""
    with sources.temporary_folder() as scratch:
        copy = sources.fetch_sources(".", scratch, template=True)
        for path in sources.build(copy, scratch / "built"):
            Path("dist").mkdir(exist_ok=True)
            print(shutil.copy(path, "dist"))


def recover() -> None:
    """Put an engine back that a killed update has moved away, and remove what killed commands have left."""
    if OLD.is_dir() and not Path("engine").exists():
        os.rename(OLD, "engine")
        print("An interrupted update was undone: engine/ is back.", file=sys.stderr)
    for scratch in Path().glob(".engine-*"):
        if scratch == OLD or time.time() - scratch.stat().st_mtime > 3600:
            shutil.rmtree(scratch, ignore_errors=True)


def checksums(_: str) -> None:
    """Write the checksums of engine/ again, after intended edits."""
    sources.write_sums(Path("engine"))


def uncommitted_files(places: list[str]) -> list[str]:
    """Return the files in these places with changes that are not committed; empty if the project is not under git."""
    status = ["git", "status", "--porcelain", "--", *places]
    with suppress(FileNotFoundError):  # no git
        done = subprocess.run(status, capture_output=True, text=True)
        return [line[3:] for line in done.stdout.splitlines()]
    return []


def wheel_version(name: str) -> str:
    """Return the version in a wheel's name; "" if there is none."""
    found = re.search(rf"{sources.PACKAGE}-([^-]+)-", name)
    return found[1] if found else ""


def changelog(wheel: Path) -> str:
    """Return the changelog of a wheel, the end of its description."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return text[max(0, text.find("# Changelog")) :]


def print_nothing_new(version: str) -> int:
    """Print that the engine is this one already; return the exit code."""
    print(f"{sources.NAME} {version}: nothing new.")
    return 0


def print_changes(before: str, after: str, changes: str, old: str) -> None:
    """Print the entries of a changelog that the old one lacks. Without an old one, those above the old version."""
    above = re.split(rf"^## \[?{re.escape(before)}\b", changes, flags=re.M)[0] if before else changes
    known, newer = {*split_entries(old)}, list[str]()
    for entry in reversed(split_entries(above)):
        if entry not in known if entry[0] != "#" else newer and title_level(newer[-1]) > title_level(entry):
            newer.append(entry)
    print(f"{sources.NAME} {before or '(unknown)'} -> {after}\n")
    print("\n".join(reversed(newer)) or "The changelog has nothing newer.")


def title_level(entry: str) -> int:
    """Return the number of # of a title, or a larger number for another entry."""
    return len(entry) - len(entry.lstrip("#")) or 9


def split_entries(text: str) -> list[str]:
    """Return the titles and the entries of a changelog, without its own title."""
    blocks = re.split(r"^(?=#+ |- )|\n\n", text, flags=re.M)
    return [block.strip() for block in blocks if block and block.strip() and not block.startswith("# ")]


def place(built: list[Path], folder: Path) -> None:
    """Put wheel and sdist into the wheels/ of a new project, and require that wheel."""
    (folder / "wheels").mkdir(exist_ok=True)
    for path in built:
        shutil.copy(path, folder / "wheels")
    (folder / LIST).write_text(requirement(built))


def requirement(built: list[Path]) -> str:
    """Return the requirement of a wheel in wheels/ by its hash, with the hash of its sdist in a comment."""
    sdists = "".join(f"{SDIST}{sources.digest_of(path)}\n" for path in built[1:])
    return f"./wheels/{built[0].name} --hash=sha256:{sources.digest_of(built[0])}\n{sdists}"


def install(built: list[Path]) -> None:
    """Put wheel and sdist into wheels/, require that wheel, and install it."""
    kept = Path("wheels")
    kept.mkdir(exist_ok=True)
    copies = [Path(shutil.copy(path, partial_name(kept / path.name))) for path in built]
    wheel, part = kept / built[0].name, partial_name(LIST)
    before, after = LIST.read_text() if LIST.exists() else "", requirement(built)
    start, (first, _, sdists) = f"./{wheel} --hash=sha256:", after.partition("\n")
    if start in before:  # another wheel with this name: in between, both are right
        part.write_text(before.replace(start, f"{first} --hash=sha256:") + sdists)
        os.replace(part, LIST)
    for copy, path in zip(copies, built, strict=True):
        os.replace(copy, kept / path.name)
    part.write_text(after)
    pip("install", "--no-deps", "--force-reinstall", "--require-hashes", "--requirement", str(part))
    os.replace(part, LIST)
    for old in set(kept.glob(f"{sources.PACKAGE}-*")) - {kept / path.name for path in built}:
        old.unlink()


def partial_name(path: Path) -> Path:
    """Return the name of an incomplete copy."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def pip(*arguments: str) -> None:
    """Run pip in this environment."""
    sources.run(sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

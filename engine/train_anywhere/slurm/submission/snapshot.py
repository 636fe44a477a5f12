"""Copy the project's files into the run folder, so that a job runs the submitted code.

Tests, keys and passwords, data and unreadable files are excluded.
"""

import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePath

from train_anywhere.config.checks.program import OUTSIDE
from train_anywhere.errors import SubmitError
from train_anywhere.files import ENGINE, HAS_PROJECT, ROOT
from train_anywhere.runs import provenance

OWN_TOPS = ("train_anywhere", *(() if HAS_PROJECT else ("hydra_plugins/train_anywhere_launcher",)))
"""Folders of the engine that a job copies: without a project also the plugin for Hydra programs."""

HYDRA_OUTPUT = () if HAS_PROJECT else ("multirun", "outputs")
"""Folders in which Hydra programs write."""

MAX_LISTED = 20
"""Largest number of paths in notes."""

MAX_OUTSIDE = 10_000
"""Largest number of files in the folder of a program outside of the project and of git: it may be a home folder."""

MAX_CODE = 20 * 2**20
"""Size in bytes from which a file that git does not track is taken for data."""

SECRET_NAMES = Path(__file__).with_name("excluded_names.txt").read_text().split()
"""Names of files and folders that commonly contain keys or passwords; case does not matter.

A pattern with a slash is matched against the whole path.
"""

SETTINGS = re.compile(
    r"\.(?:txt|json|ya?ml|toml|ini|env|cfg|conf|config|properties|xml|csv|rtf|plist|docx?|xlsx?)$"
)
"""Ends of the names of files with settings."""

SECRET_WORDS = re.compile(
    r"secrets?(?:key)?(?![a-z])|passw(?:or)?ds?(?![a-z])|passphrase|credentials?(?![a-z])|(?<![a-z])(?:creds?|pwd)(?![a-z])"
    r"|(?:access|secret|private|ssh|deploy|signing|master|encryption|auth|account|storage)[-_. ]?keys?(?![a-z])"
    r"|(?:access|refresh|auth|api|bot|bearer|session|oauth|github|gitlab|hf|slack|wandb)[-_. ]?tokens?(?![a-z])|(?:^|[-_. ])token$"
)
"""Words in the name of a file with settings, or without a suffix, that holds a key."""

COPIES = re.compile(
    r"^(?:(?:copy|backup) of |old[ _-]+|dot[_-](?=\w)|\.#(?=\w)|\.(?=.+\.sw[op]$)|[._#~]+(?=\.)|[#~]+)|[~#]+$"
    r"|\.(?:bak\d*|backup|old|orig|saved?|copy|sw[op]|te?mp|txt|zip|gz|bz2|xz|7z|tar|tgz|enc|\d{1,8}|\d{4}-\d\d-\d\d)$"
    r"|(?:[ _.-]*\(\d+\)|[ _-]+(?:copy|kopie|backup|bak|old|orig|new|prod|dev|test|v?\d{1,8}|\d{4}-\d\d-\d\d))(?=(?:\.\w+)?$)"
)
"""What the name of a copy has more: .env.bak, kaggle (1).json, Copy of id_rsa."""

SECRET_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|PuTTY-User-Key-File|\bhf_\w{16}|\bgh[opsru]_\w{16}|\bgithub_pat_\w{16}|\bglpat-[\w-]{16}"
    rb"|\bA(?:KI|SI)A[0-9A-Z]{12}|\bxox[abprs]-[\w-]{10}|\bsk-(?:proj-|ant-)?\w{20}|\bAIza[\w-]{30}"
)
"""Keys and tokens in a text, as their services write them."""

HEAD, SMALL = 1024, 1 << 20
"""Bytes that are searched for `SECRET_TEXT`, of a file of at most so many."""

SECRET_FOLDERS = ("secret", "secrets", "credentials*", "creds", "passwords", "private-keys*")
"""Patterns for folders besides the hidden ones of `SECRET_NAMES`: all files below such a folder are excluded."""

CODE = (".py", ".pyi")
"""Suffixes of code: token.py is not a token. Code below a hidden folder of `SECRET_NAMES` is excluded too."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of the code. Without git `commit` is None; `dirty` means that files other than tests differ from it."""

    commit: str | None
    dirty: bool
    notes: tuple[str, ...]


def take_snapshot(root: Path, code: Path, results: Path, outside: str | None = None) -> Snapshot:
    """Copy the project without its tests and ignored files into `code`.

    The folder of the results is never copied. `outside`, the folder of a program, is copied in the same way.

    Raises SubmitError: a file can't be read, the disk is full, or git does not answer; a part of the copy may exist.
    """
    left_out, others = dict[str, str](), dict[str, str]()
    try:
        # without a project the package's is copied, which no git tracks
        known = provenance.read_state(root) if HAS_PROJECT else None
        new, names = list_names(root, results, known, left_out)
        _copy(root, code, (name for name in names if not name.startswith("engine/")), left_out)
        if ENGINE.resolve() == (root / "engine").resolve():
            own = [n.removeprefix("engine/") for n in names if n.startswith("engine/train_anywhere/")]
        else:
            own = [f"{top}/{name}" for top in OWN_TOPS for name in _walk(ENGINE / top, left_out, excluded=())]
        _copy(ENGINE, code, own, left_out)
        notes = [*_notes(left_out)] if HAS_PROJECT else []
        if HAS_PROJECT and known is None:
            notes.insert(
                0, f"{root} is not under git: all files but hidden ones, data, results and tests were copied."
            )
        if outside is not None:
            top, of_program = Path(outside), _read_state_of(Path(outside))
            of_top, names = list_names(top, results, of_program, others)
            if not HAS_PROJECT:
                known, new = of_program, of_top
                names = _link_data(top, code / OUTSIDE / top.name, results, names)
            _copy(top, code / OUTSIDE / top.name, names, others)
            notes += _notes(others)
        commit, dirty = (known.commit, known.changed or bool(new)) if known else (None, False)
        return Snapshot(commit, dirty, tuple(notes))
    except PermissionError as error:
        raise SubmitError(
            f"{error.filename} can't be read or written ({error.strerror}), and a job runs a copy of the project's files: "
            "change its permissions (chmod u+rw), or remove it."
        ) from error
    except OSError as error:
        raise SubmitError(f"the project's files can't be copied to {code}: {error}.") from error


def _link_data(top: Path, copy: Path, results: Path, names: Sequence[str]) -> list[str]:
    """Link the folders of a program that have no file to copy, or only a .gitkeep, and return the other files.

    They are such as data/ and logs/, whose paths a program may know relative to its own.
    """
    os.makedirs(copy)
    code = {name.partition("/")[0] for name in names if os.path.basename(name.rstrip("/"))[0] != "."}
    with os.scandir(top) as entries:
        for entry in entries:
            hidden = entry.name[0] == "." or entry.path == str(results) or may_hold_secrets(entry.name)
            if entry.is_dir() and not hidden and entry.name not in code:
                (copy / entry.name).symlink_to(entry.path)
    return [name for name in names if not (copy / name.partition("/")[0]).is_symlink()]


def _read_state_of(top: Path) -> provenance.GitState | None:
    """Return the git state, None for another folder. Raises SubmitError if it is too large."""
    if (top / ".git").exists():
        return provenance.read_state(top)
    if sum(1 for _ in itertools.islice(_walk(top, {}), MAX_OUTSIDE + 1)) > MAX_OUTSIDE:
        raise SubmitError(
            f"{top} has more than {MAX_OUTSIDE} files, and a job copies the folder of a program that is outside of the project: move the "
            "program to a folder of its own, or put it under git."
        )
    return None


def list_names(
    root: Path,
    results: Path,
    known: provenance.GitState | None,
    left_out: dict[str, str],
    unused: tuple[str, ...] = provenance.UNUSED_FOLDERS,
) -> tuple[list[str], list[str]]:
    """Return untracked files, and all to copy, without those of results and of the folders `unused`."""
    others = (os.path.relpath(results, root) + "/", *unused)
    tracked = [name for name in known.tracked if not name.startswith(others)] if known else []
    found = known.untracked if known else _walk(root, left_out)
    new = [name for name in found if not name.startswith((*others, *(f"{name}/" for name in HYDRA_OUTPUT)))]
    code = []
    for name in new:
        path = root / name
        with suppress(FileNotFoundError):  # deleted a moment ago
            if why := why_not_copied(root, name):
                left_out[name] = why
            elif path.is_symlink() and path.is_dir():
                left_out[name] = "not tracked by git, and a link to a folder"
            elif path.is_file() and path.lstat().st_size >= MAX_CODE:
                left_out[name] = f"not tracked by git, and larger than {MAX_CODE >> 20} MiB"
            else:
                code.append(name)
    return new, [*tracked, *code]


def missing_problem(name: str, results: str, top: Path = ROOT) -> list[str]:
    """Return a message if a snapshot would lack `name`. Raises SubmitError if git does not answer."""
    left_out: dict[str, str] = {}
    known = provenance.read_state(top) if top == ROOT else _read_state_of(top)
    _, names = list_names(top, Path(results), known, left_out)
    if any(
        name in (one, ".") or one.startswith(f"{name}/") or (one.endswith("/") and name.startswith(one))
        for one in names
    ):
        return []
    why = left_out.get(name, "it is ignored by git, or among tests or results")
    return [
        f"{name} is not in the copy of the project that a job runs ({why}); move it to another folder, or name another script."
    ]


def _notes(left_out: dict[str, str]) -> Iterator[str]:
    shown = itertools.islice(left_out.items(), MAX_LISTED)
    yield from (f"{name} was left out of the snapshot: {why}." for name, why in shown)
    if len(left_out) > MAX_LISTED:
        yield f"{len(left_out) - MAX_LISTED} more paths were left out of the snapshot, such as {[*left_out][-1]}."


def _walk(
    root: Path, left_out: dict[str, str], excluded: Collection[str] = ("data", "results", *HYDRA_OUTPUT)
) -> Iterator[str]:
    """Yield the files of a project without git, without hidden files and environments."""

    def unreadable(error: OSError) -> None:
        left_out[os.path.relpath(error.filename, root)] = f"it can't be read ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=unreadable):
        here = Path(folder)
        top = excluded if here == root else ()
        own = [f for f in folders if f[0] != "." and f not in (*top, "__pycache__")]
        folders[:] = [f for f in own if not os.path.exists(here / f / "pyvenv.cfg")]
        yield from (str((here / f).relative_to(root)) for f in files if f[0] != ".")


def _copy(root: Path, code: Path, names: Iterable[str], left_out: dict[str, str]) -> None:
    """Copy files and folders, and add sockets and the like to `left_out` with a reason."""

    def ignore(folder: str, entries: list[str]) -> set[str]:
        found = {e: os.path.relpath(os.path.join(folder, e), root) for e in entries if e != ".git"}
        skipped = {e: why for e, name in found.items() if (why := why_not_copied(root, name))}
        left_out.update({found[e]: why for e, why in skipped.items()})
        return {".git", *skipped}

    os.makedirs(code, exist_ok=True)
    with suppress(OSError):  # a file system without permissions
        code.chmod(code.stat().st_mode & (root.stat().st_mode | 0o700))
    created = {""}
    for name in names:
        _make_folder(root, code, os.path.dirname(name.rstrip("/")), created)
        source, target = os.path.join(root, name), os.path.join(code, name)
        try:
            mode = os.stat(source).st_mode  # of what a link leads to, which may be edited too
            if kind := describe_special(mode):
                left_out[name] = kind
            elif stat.S_ISDIR(mode):  # a submodule, or another repository
                shutil.copytree(source, target, symlinks=True, ignore=ignore)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                with open(source, "rb") as file, open(os.open(target, flags, mode & 0o777), "wb") as copy:
                    shutil.copyfileobj(file, copy)
        except OSError as error:
            # deleted, but still in git's index, or a broken link
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise


def _make_folder(root: Path, code: Path, folder: str, created: set[str]) -> None:
    """Create a folder and its parents, with permissions no wider than the project's."""
    if folder not in created:
        _make_folder(root, code, os.path.dirname(folder), created)
        with suppress(FileNotFoundError):  # deleted, but still in git's index
            mode = os.stat(os.path.join(root, folder)).st_mode & 0o777
            with suppress(FileExistsError):  # a folder has replaced a tracked file
                os.mkdir(os.path.join(code, folder), mode | 0o700)
        created.add(folder)


def may_hold_secrets(name: str) -> bool:
    """Return whether the name of a path below the project suggests keys or passwords."""
    *folders, last = [part.lower() for part in PurePath(name).parts] or [""]
    hidden, others, paths, names = _secret_patterns()
    if last.endswith(CODE):
        return any(map(hidden.match, folders))
    found = [last]
    while (original := COPIES.sub("", found[-1])) not in (*found, ""):
        found.append(original)
    words = any(
        SECRET_WORDS.search(SETTINGS.sub("", one)) for one in found if SETTINGS.search(one) or "." not in one
    )
    return (
        words
        or any(names.match(one) or paths.match("/".join(["", *folders, one])) for one in found)
        or any(hidden.match(folder) or others.match(folder) for folder in folders)
    )


@cache
def _secret_patterns() -> list[re.Pattern[str]]:
    """Return what matches hidden and other secret folders, and secret files by path and by name."""
    hidden = [p for p in SECRET_NAMES if p[0] == "."]
    paths, names = [p for p in SECRET_NAMES if "/" in p], [p for p in SECRET_NAMES if "/" not in p]
    return [re.compile("|".join(map(translate, group))) for group in (hidden, SECRET_FOLDERS, paths, names)]


def describe_special(mode: int) -> str:
    """Return a clause such as "it is a FIFO". Empty for a file, folder or link."""
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFBLK: "device", stat.S_IFCHR: "device"}
    return f"it is a {kind}" if (kind := kinds.get(stat.S_IFMT(mode))) else ""


def why_not_copied(root: Path, name: str) -> str:
    """Return why a path below `root` can't or must not be copied. Empty if it may be."""
    path = root / name
    try:
        # what a link names, and what it leads to in the end
        ends = os.path.realpath(path), os.path.realpath(root)
        linked = [os.readlink(path), os.path.relpath(*ends)] if path.is_symlink() else []
        status = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # just deleted, or a broken link
            return ""
        return f"it can't be read ({error.strerror})"
    secret = any(map(may_hold_secrets, [name, *linked]))
    # code may have the form of a key, and what it lacks would be missed
    if stat.S_ISREG(status.st_mode) and status.st_size <= SMALL and not name.lower().endswith(CODE):
        with suppress(OSError), open(path, "rb") as file:
            head = file.read(HEAD)
            secret |= b"\0" not in head and bool(SECRET_TEXT.search(head))
    if secret:
        return "it may hold keys or passwords"
    readable = os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK)
    return describe_special(status.st_mode) or ("" if readable else "it can't be read (Permission denied)")

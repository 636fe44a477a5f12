"""A bad input: the command line, what is damaged around it, and the expected message."""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.tests.bad_inputs.runs import make_run
from engine.tests.bad_inputs.scratch import Answer, Scratch

Damage = str | bytes | Callable[[Path], None]
"""New content of a file, or what is done to it."""

SCRIPTS = {
    "train": "src/train.py",
    "jobs": "src/jobs.py",
    "doctor": "-m train_anywhere doctor",
    "evaluate": "src/evaluate.py",
    "report": "-m train_anywhere report",
    "scaling": "-m train_anywhere scaling",
    "new_cluster": "slurm/new_cluster.py",
}


@dataclass(frozen=True)
class Row:
    """A bad input and the message that a user should read.

    Attributes:
        words: the command line as typed in a shell; `{row}` is the row's folder, `{run}` a run folder that trained here,
            `{job}` one that was submitted as job 4001.
        says: regular expression of one line on stderr; for exit code 0 also on stdout.
        code: exit code.
        command: of `SCRIPTS`.
        files: paths below row/ or project/, and what is done to them before the command starts.
        programs: shell lines of programs that are first on PATH.
        environ: changes to the environment; "" removes a variable.
        writes: regular expression of the paths that may be written.
        limit: seconds.
        real: in a new interpreter; needed if the interpreter itself reads the odd input.
        stdout: a device that receives the output.
        name: if the words don't show what is odd.
    """

    words: str
    says: str
    code: int = 2
    command: str = "train"
    files: Mapping[str, Damage] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    writes: str = ""
    limit: float = 20.0
    real: bool = False
    stdout: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """The row's name, short enough for a line of pytest."""
        around = ", ".join([*self.files, *self.programs, *(f"{k}={v}" for k, v in self.environ.items())])
        full = self.name or f"{self.words or 'no words'}{f' with {around}' if around else ''}"
        plain = full.encode("ascii", "backslashreplace").decode().replace("::", ":")
        return f"{self.command}: {plain if len(plain) < 110 else plain[:80] + '...' + plain[-26:]}"


def ask(row: Row, scratch: Scratch, real: bool = False) -> Answer:
    """Prepare the scratch folder, type the words, put the project back."""
    prepare(row, scratch)
    try:
        words = [w.replace("{row}", str(scratch.row)) for w in shlex.split(row.words)]
        words = [
            w.replace("{run}", f"{scratch.row}/{RUN}").replace("{job}", f"{scratch.row}/{JOB}") for w in words
        ]
        return scratch.run(
            SCRIPTS[row.command], words, dict(row.environ), row.limit, real or row.real, row.stdout
        )
    finally:
        scratch.fill_project()


RUN, JOB = "results/digits/20260101-000000-aaaa", "results/digits/20260102-000000-bbbb"


def prepare(row: Row, scratch: Scratch) -> None:
    """Empty the row's folder and fill it anew."""
    scratch.empty_row()
    text = f"{row.words} {' '.join(row.files)}"
    if "{run}" in text or RUN in text:
        make_run(scratch.row / RUN)
    if "{job}" in text or JOB in text:
        make_run(scratch.row / JOB, "cluster=slurm", job_id="4001")
    for name, body in row.programs.items():
        program(scratch.row / "bin" / name, body)
    for name, damage in row.files.items():
        harm(scratch.path / name.replace("{run}", f"row/{RUN}").replace("{job}", f"row/{JOB}"), damage)


def program(path: Path, body: str) -> None:
    """A program of these shell lines."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def harm(path: Path, damage: Damage) -> None:
    """Give a file its new content, or do to it what the damage does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(damage, str):
        path.write_text(damage)
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        damage(path)


def with_mode(mode: int, content: bytes = b"") -> Callable[[Path], None]:
    """A file with this content and these permissions."""

    def make(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(mode)

    return make


def gone(path: Path) -> None:
    """No such file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def folder(path: Path) -> None:
    """A folder in a file's place."""
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def foreign(path: Path) -> None:
    """A folder with all that is in it that belongs to another user, who lets us write there."""
    for each in (path, *path.rglob("*")):
        os.chmod(each, 0o777 if each.is_dir() else 0o666)
        os.lchown(each, 12345, 12345)


def edited(old: str, new: str) -> Callable[[Path], None]:
    """Return a damage that replaces a string of a file by another one."""

    def edit(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


def fifo(path: Path) -> None:
    """A named pipe in a file's place: who opens it waits."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def unreadable(path: Path) -> None:
    """A file or folder that may not be read or entered."""
    path.chmod(0)


def read_only(path: Path) -> None:
    """A folder in which nothing can be made, or a file that can't be written."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o555)


def link(target: str) -> Callable[[Path], None]:
    """A symbolic link in its place."""

    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return make


def huge(path: Path) -> None:
    """Write a sparse file of 64 MiB of zeros."""
    os.truncate(path, 64 << 20)

"""A folder where commands may do anything: a copy of the project, and one folder per row.

SCRATCH/project   src, slurm, hydra_plugins and configs; commands run from here
        row       the row's own: home, bin (first on PATH), tmp, and what its preparation puts there
        tools     the programs of this machine that commands may call; no scheduler among them
        guard     stand-ins for the frameworks: importing one ends the process, so that a row that trains is noticed at once
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.tests.confined import INSIDE
from train_anywhere.files import ROOT
from train_anywhere.launch.fork_main import changed_at_import
from train_anywhere.launch.forkserver import ForkServer

TRAINS = 99
"""Exit code of a command that imported a framework: it was not refused."""

TREES = ("src", "slurm", "hydra_plugins", "configs", "tools", "engine/train_anywhere")
TOOLS = (
    "bash", "sh", "cat", "env", "sleep", "echo", "git", "hostname", "ps", "id", "mkdir", "rm", "ls", "uname", "chmod", "true",
    "false", "printf", "sed", "grep", "dd", "yes",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The result of one command.

    Attributes:
        code: exit code; negative for a signal.
        seconds: how long it took.
        ended: False if it had to be killed.
        stdout, stderr: what it printed.
        written: paths below the scratch folder that are new, gone or changed.
    """

    code: int
    seconds: float
    ended: bool
    stdout: str
    stderr: str
    written: tuple[str, ...]


HEAVY = ["torch", "tensorflow", "keras", "lightning"]


class Scratch:
    """The scratch folder and the confined process in it that starts commands. Needs root."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bad-inputs-", dir="/var/tmp")).resolve()
        self.project, self.row, self.out = (self.path / n for n in ("project", "row", "out"))
        self.clean: dict[str, dict[str, tuple[Any, ...]]] = {}

    def __enter__(self) -> Self:
        self.path.chmod(0o755)
        self.fill_project()
        (self.path / "tools").mkdir()
        for name in TOOLS:
            if where := shutil.which(name):
                (self.path / "tools" / name).symlink_to(where)
        for name in HEAVY:
            (self.path / "guard" / name).mkdir(parents=True)
            stop = f"import os, sys\nprint('{name} is imported: this trains', file=sys.stderr, flush=True)\nos._exit({TRAINS})\n"
            (self.path / "guard" / name / "__init__.py").write_text(stop)
        new = "import os, sys\nprogram, *words = sys.argv[1:]\nos.execvp(program, [program, *words])\n"
        (self.path / "guard" / "new_interpreter.py").write_text(new)
        self.out.mkdir()
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.path)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        shutil.rmtree(self.path)

    def start(self) -> None:
        """Start the server, confined."""
        private = ["unshare", "--mount", "--propagation", "private"]
        inside = [*private, "bash", "-c", INSIDE, "confined", str(self.path)]
        # without root's powers: permissions hold for it as for any user
        powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        around = [*inside, "env", "-C", str(self.project), *powerless]
        environ = {**self.environ({}), "PATH": os.environ["PATH"]}  # for mount; commands get the other one
        self.server = ForkServer(["tools.testing.warm_imports"], environ, self.project, around)
        assert self.ask("-c", ["0"], {}, self.files(), 60)[0] == 0, "the server did not start"

    def environ(self, changes: dict[str, str]) -> dict[str, str]:
        """Return a user's environment without values of this machine. "" removes a variable."""
        fixed = {
            "PATH": f"{self.row}/bin:{self.path}/tools",
            "HOME": f"{self.row}/home",
            "TMPDIR": f"{self.row}/tmp",
            "USER": "ada",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{self.path}/guard",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        changed = {k: v.replace("{row}", str(self.row)) for k, v in changes.items()}
        return {k: v for k, v in {**fixed, **changed}.items() if v or k not in changes}

    def fill_project(self) -> None:
        """Put the project there, or make what differs from it what it was."""
        self.project.mkdir(exist_ok=True)
        for other in set(os.listdir(self.project)) - {tree.split("/")[0] for tree in TREES}:
            self.remove(self.project / other)
        for tree in TREES:
            folder = self.project / tree
            if self.listing(folder) != self.clean.get(tree):
                self.remove(folder)
                shutil.copytree(ROOT / tree, folder, ignore=shutil.ignore_patterns("__pycache__"))
                self.clean[tree] = self.listing(folder)

    def empty_row(self) -> None:
        """A new, empty folder for a row."""
        self.remove(self.row)
        for name in ("home", "bin", "tmp"):
            (self.row / name).mkdir(parents=True)

    def remove(self, folder: Path) -> None:
        """Remove a folder of ours, even if a row removed its permissions."""
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.unlink(missing_ok=True)

    def listing(self, *tops: Path) -> dict[str, tuple[Any, ...]]:
        """Return every path below row and project with what a write would change in it."""
        found: dict[str, tuple[Any, ...]] = {}
        for top in tops or (self.row, self.project):
            for at, folders, files in os.walk(top):
                for name in (".", *folders, *files):
                    path = os.path.normpath(os.path.join(at, name))
                    s = os.lstat(path)
                    stamps = (s.st_mtime_ns, s.st_ctime_ns) if name != "." else ()
                    found[os.path.relpath(path, self.path)] = (s.st_mode, s.st_ino, s.st_size, *stamps)
        return found

    def run(
        self,
        script: str,
        words: list[str],
        environ: dict[str, str],
        limit: float,
        real: bool = False,
        stdout: str = "",
    ) -> Answer:
        """Run a command of the project and return its answer.

        Args:
            script: such as src/train.py, or -m train_anywhere doctor.
            words: its arguments.
            environ: changes to the environment.
            limit: seconds until it is killed.
            real: in a new interpreter instead of a fork, as always with variables that Python reads at its start.
            stdout: receives its output instead of a file that is read.
        """
        files = self.files()
        before = self.listing()
        at = script.split() if script.startswith("-m") else [str(self.project / script)]
        at_start = changed_at_import(self.environ(environ), self.environ({}))
        if real or at_start:
            sets = [f"{name}={environ[name]}" for name in at_start]
            at = [str(self.path / "guard/new_interpreter.py"), "env", *sets, sys.executable, *at]
        program, *words = [*at, *words]
        later = {name: value for name, value in environ.items() if name not in at_start}
        given = {**files, **({"stdout": Path(stdout)} if stdout else {})}
        start = time.monotonic()
        code, ended = self.ask(program, words, later, given, limit)
        seconds = time.monotonic() - start
        after = self.listing()
        written = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
        said = [f.read_text(errors="replace") if f.exists() else "" for f in files.values()]
        return Answer(code, seconds, ended, *said, tuple(written))

    def files(self) -> dict[str, Path]:
        """Remove the output files of the last command and return their paths."""
        files = {n: self.out / n for n in ("stdout", "stderr")}
        for file in files.values():
            file.unlink(missing_ok=True)
        return files

    def ask(
        self, program: str, words: list[str], environ: dict[str, str], files: dict[str, Path], limit: float
    ) -> tuple[int, bool]:
        """Run a program in the confined server. Return its exit code, and False if it was killed."""
        with ExitStack() as opened:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            streams = [os.open(os.devnull, os.O_RDONLY), *(os.open(f, flags, 0o666) for f in files.values())]
            for number in streams:
                opened.callback(os.close, number)
            process = self.server.fork(
                [sys.executable, program, *words], self.environ(environ), self.project, streams
            )
        assert process, self.server.why_not
        try:
            ended = process.wait(limit) is not None
        except subprocess.TimeoutExpired:
            ended = False
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started
        return process.wait(), ended

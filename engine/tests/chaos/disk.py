"""Runs on disks that refuse, and run folders with links: whole commands in forks.

    python engine/tests/chaos/disk.py faults FRAMEWORK 40       # file operations below the results that fail, 40 of all of them
    python engine/tests/chaos/disk.py full FRAMEWORK 8          # real disks that are too small; as root, in a mount namespace
    python engine/tests/chaos/disk.py links FRAMEWORK 20        # something else in the place of 20 files of a finished run, then resume=

The last line is one JSON object: how many commands ran, and what was wrong.
"""

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "engine"), str(Path(__file__).parent)]

from lab import Fault, Lab, preload  # noqa: E402
from trainees import SMALL, Framework  # noqa: E402

from train_anywhere.runs.folder import RunDir  # noqa: E402

QUIET = ("trainer.max_epochs=1", "monitor.hang_minutes=null", "monitor.sample_seconds=null")
FOREVER = 10**9
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


class Commands(Framework):
    """A command line stands for what is trained."""

    def train(self, words: list[str]) -> int:  # type: ignore[override]
        """Run a command line as `src/train.py` does and return the exit code."""
        from train_anywhere.config.command.compose import compose
        from train_anywhere.config.load import to_plain_tree
        from train_anywhere.launch.command import build_hydra_arguments, run_command
        from train_anywhere.launch.local_run import start
        from train_anywhere.training.preflight import CHECKS

        def command() -> int:
            sys.argv[1:] = whole = build_hydra_arguments(words)
            tree = compose(whole)
            return start(tree if isinstance(tree, dict) else to_plain_tree(tree), whole, CHECKS)

        return run_command(command)


class Disk:
    """Runs commands in a laboratory, and collects what is wrong with them."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework, self.folder = framework, folder
        self.lab = Lab(Commands(framework), folder)
        self.commands, self.wrong = 0, list[str]()

    def words(self, results: Path, local: str) -> list[str]:
        """The command line of a new run."""
        place = [f"framework={self.framework}", f"paths.results={results}", f"checkpoint.local={local}"]
        return [*SMALL, *QUIET, *place]

    def run(self, words: list[str], fault: Fault) -> tuple[int, int, str]:
        """Exit code, file operations, and what a command printed."""
        self.lab.log.write_text("")
        code, operations = self.lab.child(words, fault)  # type: ignore[arg-type]
        self.commands += 1
        return code, operations, self.lab.log.read_text()

    def problem(self, what: str, said: str) -> None:
        """Remember what is wrong."""
        self.wrong.append(f"{what}: {said[-1500:]}")


# --- disks that refuse ------------------------------------------------------------------------------------------------


def faults(disk: Disk, count: int) -> None:
    """Let one operation fail, or all from it on, spread over the whole command."""
    for local in ("null", str(disk.folder / "node")):
        results = disk.folder / "undisturbed"
        code, operations, said = disk.run(disk.words(results, local), Fault((results,)))
        if code:
            disk.problem("undisturbed", said)
            return
        shutil.rmtree(results)
        each = max(1, 2 * operations // count)
        for turn, first in enumerate(range(1 + turn_of(local), operations + 1, each)):
            last = first if turn % 3 == 0 else FOREVER
            refused(disk, local, first, last, ERRORS[turn % len(ERRORS)])


def turn_of(local: str) -> int:
    """Return the first operation, which differs between the two kinds of runs."""
    return 0 if local == "null" else 3


def refused(disk: Disk, local: str, first: int, last: int, error: int) -> None:
    """One command whose disk refuses."""
    results = disk.folder / f"r-{first}-{error}"
    results.mkdir()
    what = f"{errno.errorcode[error]} at operation {first}{' and later ones' if last > first else ''}, local={local}"
    judged(disk, what, results, local, Fault((results,), fail=(first, last), error=error))
    shutil.rmtree(results)


SMALL_DISKS = (
    "size=8k", "size=40k", "size=200k", "size=700k", "nr_inodes=4", "nr_inodes=5", "nr_inodes=12", "nr_inodes=20", "nr_inodes=30",
)  # fmt: skip


def full(disk: Disk, count: int) -> None:
    """Run on real disks with too little space or too few files."""
    for turn, options in enumerate(SMALL_DISKS[-count:]):
        results = disk.folder / options
        results.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(results)], check=True)
        code = judged(disk, options, results, "null" if turn % 2 else str(disk.folder / "node"), Fault())
        if code == 2 and any(results.iterdir()):
            disk.problem(f"{options}: a refused run left {next(results.iterdir()).name}", "")
        subprocess.run(["umount", str(results)], check=True)


def judged(disk: Disk, what: str, results: Path, local: str, fault: Fault) -> int:
    """Run a command. Check that its exit code fits the state and a message names a file."""
    code, _, said = disk.run(disk.words(results, local), fault)
    runs = [RunDir(path.parent) for path in results.glob("*/2*/config.yaml")]
    state = runs[0].read_info().get("state") if runs else None
    fits = {
        0: state == "completed",
        1: state == "failed" or "run.json" in said,
        2: "nothing was trained" in said or "paths.results=" in said,
    }
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if not fits.get(code) or "Traceback" in said or ".py, line" in said or len(errors) > 1:
        disk.problem(f"{what}: exit code {code}, state {state}", said)
    if code and str(results) not in "".join(errors):
        disk.problem(f"{what}: no file is named", said)
    return code


# --- run folders with something else in the place of a file -----------------------------------------------------------

KINDS = ("a file", "a folder", "nothing", "a pipe", "a device", "a socket")
"""What is put there: a link to one of the first three, or one of the others itself."""


def links(disk: Disk, count: int) -> None:
    """Put each kind of object in the place of each file of a finished run, and resume it."""
    results, user = disk.folder / "results", disk.folder / "user"
    code, _, said = disk.run(disk.words(results, "null"), Fault())
    if code:
        disk.problem("undisturbed", said)
        return
    run = next(results.glob("*/2*/config.yaml")).parent
    saved = disk.folder / "saved"
    shutil.copytree(run, saved)
    # written by other parts of a run than rank 0
    host = socket.gethostname()
    for name in (
        f"monitor/{host}.csv",
        f"monitor/trouble-{host}.txt",
        "monitor/hang",
        f"tensorboard/{host}/e",
    ):
        (saved / name).parent.mkdir(exist_ok=True)
        (saved / name).write_text("")
    for name in (
        "jobs.txt",
        "slurm-7.out",
        "bad_nodes",
        "debug/local-1-cause.txt",
        "log.txt",
        "wandb/x",
        "mlruns/0/x",
    ):
        (saved / name).parent.mkdir(exist_ok=True, parents=True)
        (saved / name).write_text("1\n")
    names = sorted(str(p.relative_to(saved)) for p in saved.rglob("*"))
    for turn, name in enumerate(names[:: max(1, len(names) // count)]):
        kinds = KINDS if count > len(names) else (KINDS[turn % len(KINDS)],)
        for kind in kinds:
            shutil.rmtree(run)
            shutil.copytree(saved, run)
            shutil.rmtree(user, ignore_errors=True)
            resumed(disk, run, user, name, kind)


def resumed(disk: Disk, run: Path, user: Path, name: str, kind: str) -> None:
    """Resume a run with a replaced `name`: it is refused or trains, the user's files stay."""
    plant(run / name, user, kind)
    before = content(user)
    words = [f"resume={run}", "trainer.max_epochs=2"]
    code, _, said = disk.run(words, Fault())
    if content(user) != before:
        disk.problem(f"{name} as {kind}: the file of the user is written", said)
    if code not in (0, 2) or "Traceback" in said or (code == 2 and str(run) not in said):
        disk.problem(f"{name} as {kind}: exit code {code}", said)


def plant(path: Path, user: Path, kind: str) -> None:
    """Put it there."""
    (user / "folder").mkdir(parents=True)
    (user / "thesis.tex").write_text("two years of work\n")
    (user / "folder" / "notes.txt").write_text("and the notes\n")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    targets = {"a file": user / "thesis.tex", "a folder": user / "folder", "nothing": user / "new.txt"}
    if kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "a socket":
        made = socket.socket(socket.AF_UNIX)
        os.chdir(path.parent)  # the name of a socket is short
        made.bind(path.name)
        os.chdir("/")
    else:
        os.mknod(path, 0o600 | (stat.S_IFIFO if kind == "a pipe" else stat.S_IFCHR), os.makedev(1, 3))


def content(user: Path) -> dict[str, bytes | None]:
    """All files of the user."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in user.rglob("*")}


EXPERIMENTS: dict[str, Callable[[Disk, int], None]] = {"faults": faults, "full": full, "links": links}


def main() -> str:
    """Run one experiment in the folder named by TMPDIR and return the last line."""
    experiment, framework, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    folder = Path(os.environ["TMPDIR"], "disk").resolve()
    folder.mkdir()
    disk = Disk(framework, folder)
    EXPERIMENTS[experiment](disk, count)
    return json.dumps({"commands": disk.commands, "wrong": disk.wrong})


if __name__ == "__main__":
    preload()
    print(main())

"""The crash laboratory kills trainings, spoils disks, resumes, and compares final weights.

    python engine/tests/chaos/lab.py --framework lightning --kills 200

Half of the kills come at random moments, half at the file operations of saving and publishing, one by one. The last line
is one JSON object. `torn` counts visible checkpoints whose checksums do not match, `lost` runs that did not complete or
resumed before a published checkpoint, `different` final weights or curves that differ from those of an undisturbed run.
"""

import argparse
import atexit
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "engine"), str(Path(__file__).parent)]

from trainees import TRAINEES, Framework, Plain  # noqa: E402

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer  # noqa: E402
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint, find_damage  # noqa: E402
from train_anywhere.checkpoints.store import CheckpointStore, Retention  # noqa: E402
from train_anywhere.runs.folder import RunDir  # noqa: E402

CHECKPOINTS = "[0-9]" * 8
"""Names of their folders."""

HANGS = 120.0
"""Seconds after which a child is counted as hanging."""


@dataclass
class Fault:
    """The disturbance of a child. Numbers count its file operations below `folders` from 1."""

    folders: tuple[Path, ...] = ()
    kill_at: int = 0
    fail: tuple[int, int] = (0, 0)
    error: int = 0
    delay: float = 0.0
    clock: int = 0
    after: float | None = None  # seconds until it is killed, wherever it is


@dataclass
class Result:
    """Counts of what happened."""

    kills: int = 0
    resumes: int = 0
    torn: int = 0
    lost: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)


class Lab:
    """One trainee, its reference run, and the count of what happened to the others."""

    def __init__(self, trainee: Plain | Framework, folder: Path, seed: int = 0) -> None:
        self.trainee, self.folder, self.random = trainee, folder, random.Random(seed)
        self.shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.node, self.log = folder / "node", folder / "log"
        self.result = Result()
        trainee.prepare()

    def start(self) -> RunDir:
        """A new run of the trainee."""
        return self.trainee.start(self.folder / "results", self.node)

    def measure(self) -> None:
        """Measure the undisturbed run: its weights, its duration and its number of file operations."""
        run = self.start()
        began = time.monotonic()
        code, operations = self.child(run, Fault(self.both(run)))
        self.seconds, self.operations = time.monotonic() - began, operations
        self.expected, self.curves = self.weights(run), self.trainee.curves(run)
        assert code == 0 and operations > 20, self.log.read_text()
        shutil.rmtree(run.path)

    def both(self, run: RunDir) -> tuple[Path, ...]:
        """The folders that checkpoints are written to."""
        return run.checkpoints, self.node

    def child(self, run: RunDir, fault: Fault) -> tuple[int, int]:
        """Start or resume the run in a child. Return its exit code and its file operations."""
        reader, writer = os.pipe()
        child = self.begin(run, fault, writer)
        os.close(writer)
        code = self.wait(child, fault.after)
        with os.fdopen(reader) as pipe:
            return code, int(pipe.read() or 0)

    def begin(self, run: RunDir, fault: Fault, report: int | None = None) -> int:
        """Fork a child that trains and return its process id."""
        child = os.fork()
        if child:
            return child
        code = 99
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.setsid()
            tempfile.tempdir = str(self.folder)  # for what a killed child leaves
            AsyncCheckpointer.patience_s, AsyncCheckpointer.first_retry_s = 2.0, 0.02
            arm(self.shim, fault)
            code = self.trainee.train(run)
        except BaseException:
            traceback.print_exc()
        if report is not None:
            os.write(report, str(self.shim.chaos_count()).encode())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def wait(self, child: int, after: float | None = None) -> int:
        """Wait for a child's exit code. It is killed after the given seconds or if it hangs."""
        end = time.monotonic() + (HANGS if after is None else after)
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        if after is None:
            self.problem("lost", f"a child hung for {HANGS} s")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -signal.SIGKILL

    # --- what is checked ------------------------------------------------------------------------------------------

    def kill(self, run: RunDir, fault: Fault) -> bool:
        """Check that nothing is torn or lost, and return if the child was killed before its end."""
        before = newest_step(run)
        code, _ = self.child(run, fault)
        if code == 0:
            return False
        if code != -signal.SIGKILL:
            self.problem("lost", f"exit code {code} with {fault}")
            return False
        self.result.kills += 1
        for path in run.checkpoints.glob(CHECKPOINTS):
            if find_damage(path):
                self.problem("torn", f"{path} is {find_damage(path)} after {fault}")
        if newest_step(run) < before:
            self.problem("lost", f"back from step {before} to {newest_step(run)} after {fault}")
        return True

    def finish(
        self, run: RunDir, what: str, fault: Fault | None = None, expect: int = 0, one_curve: bool = True
    ) -> None:
        """Resume to the end, compare the weights and TensorBoard's curves, remove the run."""
        code, _ = self.child(run, fault or Fault())
        self.result.resumes += 1
        if code != expect:
            self.problem("lost", f"exit code {code} instead of {expect} at the end of {what}")
        elif code == 0 and self.weights(run) != self.expected:
            self.problem("different", f"other weights after {what}")
        elif code == 0 and one_curve and self.trainee.curves(run) != self.curves:
            self.problem("different", f"other curves after {what}: {self.trainee.curves(run)}")
        if code == 0:
            shutil.rmtree(run.path)
            shutil.rmtree(self.node, ignore_errors=True)

    def weights(self, run: RunDir) -> str:
        """A digest of what the run ended with."""
        newest = store(run).newest_good()
        return self.trainee.weights(newest) if newest else ""

    def problem(self, kind: str, text: str) -> None:
        """Count and remember something that must not happen."""
        setattr(self.result, kind, getattr(self.result, kind) + 1)
        self.result.notes.append(text)
        print(f"{kind}: {text}\n{self.log.read_text()[-3000:]}", flush=True)

    # --- kills ----------------------------------------------------------------------------------------------------

    def kill_at_operations(self, numbers: list[int]) -> None:
        """Kill a run at each of these file operations, then resume it to its end."""
        for number in numbers:
            run = self.start()
            if self.kill(run, Fault(self.both(run), kill_at=number)):
                self.finish(run, f"a kill at file operation {number}")
            else:
                shutil.rmtree(run.path)

    def kill_at_moments(self, count: int, in_a_row: int = 4) -> None:
        """At random moments, each run several times in a row."""
        end = self.result.kills + count
        while self.result.kills < end:
            run, killed = self.start(), 0
            while killed < in_a_row and self.result.kills < end:
                after = self.random.uniform(0.0, self.seconds)
                if not self.kill(run, Fault(after=after)):
                    break
                killed += 1
            self.finish(run, f"{killed} kills at random moments")

    def numbers(self, count: int) -> list[int]:
        """Return all file operations of a run, or a random choice of them."""
        every = range(1, self.operations + 1)
        return list(every) if count >= len(every) else sorted(self.random.sample(every, count))


def arm(shim: Any, fault: Fault) -> None:
    """Tell the shim what to do to this process."""
    first, second = [str(folder).encode() for folder in fault.folders] + [b""] * (2 - len(fault.folders))
    shim.chaos_clock(fault.clock)
    numbers = [ctypes.c_long(n) for n in (fault.kill_at, *fault.fail)]
    shim.chaos_arm(first, second, *numbers, fault.error, ctypes.c_long(int(fault.delay * 1e6)))


def store(run: RunDir) -> CheckpointStore:
    """To look at the run's checkpoints."""
    return CheckpointStore(run.checkpoints, Retention("max", keep_last=2))


def newest_step(run: RunDir) -> int:
    """Count the visible checkpoints whose checksums do not match."""
    good: list[SavedCheckpoint] = [s for s in store(run).all() if find_damage(s.path) is None]
    return good[-1].step if good else 0


def preload() -> None:
    """Start this program again with the shim between it and its files."""
    if "CHAOS_SHIM" in os.environ:
        # not by its children, which leave by os._exit
        atexit.register(shutil.rmtree, Path(os.environ["CHAOS_SHIM"]).parent)
        return
    built = Path(tempfile.mkdtemp(prefix="chaos-")) / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True)
    os.environ |= {
        "LD_PRELOAD": str(built),
        "CHAOS_SHIM": str(built),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if nothing was torn, lost or different."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", choices=list(TRAINEES), default="plain")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--every-operation", action="store_true", help="of saving and publishing, not a half of the kills"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="such as model=mlp trainer.max_epochs=2")
    parser.add_argument("--no-troubles", action="store_true", help="kills only")
    asked = parser.parse_args(arguments)
    preload()
    from troubles import TROUBLES

    memory = Path("/dev/shm")  # kills are of processes: what a process has written is there, also in memory
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=memory if memory.is_dir() else None) as folder:
        lab = Lab(TRAINEES[asked.framework](*asked.overrides), Path(folder), asked.seed)
        lab.measure()
        print(
            f"{asked.framework}: undisturbed {lab.seconds:.1f} s, {lab.operations} file operations",
            flush=True,
        )
        lab.kill_at_operations(lab.numbers(lab.operations if asked.every_operation else asked.kills // 2))
        lab.kill_at_moments(max(0, asked.kills - lab.result.kills))
        troubles: list[Callable[[Lab], None]] = [] if asked.no_troubles else TROUBLES
        for trouble in troubles:
            print(trouble.__doc__, flush=True)
            trouble(lab)
    result = lab.result
    counts = {"operations": lab.operations, "troubles": len(troubles)}
    print(json.dumps({"framework": asked.framework, **vars(result), **counts}))
    return 1 if result.torn or result.lost or result.different else 0


if __name__ == "__main__":
    sys.exit(main())

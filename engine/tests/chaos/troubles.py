"""Other disturbances: full and slow disks, lost rights, flipped bits, clocks, a second job."""

from __future__ import annotations

import errno
import shutil
import time
from typing import TYPE_CHECKING

from train_anywhere.checkpoints.disk.manifest import list_files
from train_anywhere.runs.reopen.resume import move_aside

if TYPE_CHECKING:
    from lab import Lab

    from train_anywhere.runs.folder import RunDir

FOREVER = 10**9
TEN_YEARS = 10 * 365 * 86400
NAMES = "[0-9]" * 8
"""Of the folders of checkpoints."""


def fault(*folders: object, **what: object) -> object:
    """A fault of the laboratory."""
    from lab import Fault

    return Fault(folders, **what)


def half_done(lab: Lab) -> RunDir:
    """A run that was killed in its second half."""
    run = lab.start()
    while not lab.kill(run, fault(*lab.both(run), kill_at=lab.operations * 2 // 3)):
        pass
    return run


def local_disk_full(lab: Lab) -> None:
    """the node's disk is full"""
    run = lab.start()
    lab.finish(run, "a full local disk", fault(lab.node, fail=(1, FOREVER), error=errno.ENOSPC))


def shared_disk_full_for_a_while(lab: Lab) -> None:
    """Fill the shared disk and free it again later."""
    run = lab.start()
    lab.finish(run, "a full shared disk", fault(run.checkpoints, fail=(5, 12), error=errno.ENOSPC))


def shared_disk_full(lab: Lab) -> None:
    """Fill the shared disk until the end. The run reports it and resumes with free space."""
    run = lab.start()
    full = fault(run.checkpoints, fail=(30, FOREVER), error=errno.ENOSPC)
    lab.finish(run, "a full shared disk", full, expect=1)
    if "No space left" not in lab.log.read_text():
        lab.problem("lost", "the run did not report the full disk")
    lab.finish(run, "a shared disk that was full")


def permission_lost(lab: Lab) -> None:
    """the run folder can't be written any more, until the run is resumed"""
    run = lab.start()
    lab.finish(
        run, "lost permission", fault(run.checkpoints, fail=(20, FOREVER), error=errno.EACCES), expect=1
    )
    lab.finish(run, "permission that was lost")


def disk_errors(lab: Lab) -> None:
    """now and then an operation on either disk fails"""
    for first in range(1, lab.operations, max(1, lab.operations // 4)):
        run = lab.start()
        broken = fault(*lab.both(run), fail=(first, first), error=errno.EIO)
        lab.finish(run, f"an error at file operation {first}", broken)


def flipped_bit(lab: Lab) -> None:
    """a bit of the newest checkpoint flips"""
    run = half_done(lab)
    flip(run)
    lab.finish(run, "a flipped bit")


def flipped_bits(lab: Lab) -> None:
    """Flip a bit of every checkpoint and lose the node's disk. A run from scratch continues."""
    run = half_done(lab)
    shutil.rmtree(lab.node, ignore_errors=True)
    flip(run, all_of_them=True)
    lab.finish(run, "flipped bits everywhere", expect=1)
    if "from_scratch=true" not in lab.log.read_text():
        lab.problem("lost", "the run did not say how it begins from scratch")
    kept = move_aside(run)
    if not kept or not list(kept.glob(f"checkpoints/{NAMES}")):
        lab.problem("lost", "the damaged checkpoints were not kept")
    lab.finish(run, "flipped bits everywhere, from scratch")


def slow_shared_disk(lab: Lab) -> None:
    """every operation on the shared disk takes 20 ms"""
    run = lab.start()
    lab.finish(run, "a slow shared disk", fault(run.checkpoints, delay=0.02))


def clock_set_back(lab: Lab) -> None:
    """the clock is ten years behind when the run is resumed"""
    run = half_done(lab)
    # TensorBoard goes by the time, so its curve is not one
    lab.finish(run, "a clock set back", fault(clock=-TEN_YEARS), one_curve=False)


def ten_restarts(lab: Lab) -> None:
    """ten kills in a row, at random file operations"""
    run = lab.start()
    for _ in range(10):
        lab.kill(run, fault(*lab.both(run), kill_at=lab.random.randint(1, lab.operations // 3)))
    lab.finish(run, "ten restarts")


def second_job(lab: Lab) -> None:
    """two jobs on one run folder: the second is refused, the first does not notice"""
    run = lab.start()
    first = lab.begin(run, fault(run.checkpoints, delay=0.05))
    while not (run.path / "lock").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    code, _ = lab.child(run, fault())
    said = f"process {first} on" in lab.log.read_text()
    if code == 0 or not said:
        lab.problem(
            "lost",
            f"the second job ended with exit code {code} and did {'' if said else 'not '}name the first",
        )
    if lab.wait(first):
        lab.problem("lost", "the first job noticed the second")
    lab.finish(run, "two jobs")


def flip(run: RunDir, all_of_them: bool = False) -> None:
    """Flip a bit in the largest file of the newest checkpoint, or of all."""
    for folder in sorted(run.checkpoints.glob(NAMES))[0 if all_of_them else -1 :]:
        file = max((folder / name for name in list_files(folder)), key=lambda p: p.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


TROUBLES = [
    local_disk_full, shared_disk_full_for_a_while, shared_disk_full, permission_lost, disk_errors, flipped_bit, flipped_bits,
    slow_shared_disk, clock_set_back, ten_restarts, second_job,
]  # fmt: skip

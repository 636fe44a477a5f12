"""The attempts of a run in run.json, one for its start and one for each resume: time, job, hosts, first and last step, and its end.

RUN/debug has full tracebacks and output, of which the log has only one sentence or the lines of user code. Each writer has its own file,
because several nodes can't append to one file on a network disk. File names start with `launch_id`.
"""

import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedWriter
from math import inf
from pathlib import Path
from typing import Any, Literal

from train_anywhere.files.atomic import make_folder, open_file, read_json, read_text, try_read, write_atomic
from train_anywhere.runs.folder import ATTEMPT, ATTEMPTS, RunDir, fits, now

STEPS, TIMES = "steps", "times.json"
"""Files in the run folder and in RUN/monitor/, rewritten every few seconds, with the optimizer steps done and the seconds in each section:
how far a killed attempt had trained, and where it spent its time."""

ALLOCATION, STARTED = "TRAIN_ALLOCATION", "TRAIN_STARTED"
"""Variables with the id of the interactive allocation in which the batch script runs, which can't be requeued, and with the start of the
batch script in unix seconds: the allocation's time counts from there."""

KILLED, BAD_NODES = "hang", "bad_nodes"
"""Files in RUN/monitor/ and in the run folder: the start of the ranks that the monitor has killed, and the node that hung for the second
time, each in a line, for the batch script and the other nodes; node names, separated by commas, that the job must not get again."""

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
"""Environment variables in which the schedulers give the job id."""


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt, as a framework's training loop returns it.

    Attributes:
        state: completed, or preempted when a signal asked to stop before the end.
        epoch: number of completed epochs.
        metrics: values by the names that the task gives them, such as `val/loss`.
        checkpoint: folder of the newest checkpoint; None if none was written.
        rate: training throughput of all ranks in `unit` per second; None if too few steps were measured.
        ended_by: who ended the training before its last step, see `training/early_stopping.py`; None if nobody did.
    """

    state: Literal["completed", "preempted"]
    epoch: int
    step: int
    metrics: dict[str, float]
    checkpoint: str | None
    rate: float | None = None
    unit: str = "samples"
    ended_by: str | None = None


def describe_state(word: str, info: Mapping[str, Any]) -> str:
    """Return the state of a run as people call it: after Ctrl-C it is interrupted."""
    ended_by = (info.get(ATTEMPTS) or [{}])[-1].get("ended_by")
    return "interrupted" if word == "preempted" and ended_by == "SIGINT" else word


def recorded_reason(info: Mapping[str, Any]) -> str:
    """Return why the newest attempt failed or was stopped, if that was recorded."""
    newest = (info.get(ATTEMPTS) or [{}])[-1]
    return newest.get("reason") or "" if info.get("state") == "failed" else ""


def was_killed(run: RunDir, start: str) -> bool:
    """Return whether the monitor has killed the ranks of this start."""
    return try_read(run.monitor / KILLED).split()[:1] == [start]


def start_of_job(environ: Mapping[str, str] = os.environ) -> str:
    """Return an id of this start of a job's ranks, such as '123/1795392794', and 'local/0' without a job."""
    job = running_job(environ)
    return f"{job}/{environ.get(STARTED) or 0}" if job else "local/0"


def read_bad_nodes(run: RunDir) -> list[str]:
    """Return the nodes that failed twice. Empty if they can't be read."""
    return [node for node in try_read(run.path / BAD_NODES).strip().split(",") if node]


def add_bad_node(run: RunDir, node: str) -> None:
    """Record that a node failed twice, for the next requeue. Raises OSError."""
    known = read_bad_nodes(run)
    if node not in known:
        write_atomic(run.path / BAD_NODES, ",".join([*known, node]) + "\n")


def extend_newest(
    run: RunDir, info: Mapping[str, Any] | None = None, /, **fields: Any
) -> list[dict[str, Any]]:
    """Return the attempts of run.json with `fields` and times added to the newest one. `info` is its content, if it was read."""
    attempts = (run.read_info() if info is None else info).get(ATTEMPTS) or []
    return [*attempts[:-1], *(with_times(run, {**newest, **fields}) for newest in attempts[-1:])]


def record_failure(run: RunDir, reason: str, **fields: Any) -> None:
    """Record in run.json that the newest attempt failed, with more `fields` of it. Raises OSError, CheckpointError."""
    attempts = extend_newest(run, ended_by="failed", reason=reason, **fields)
    run.update(state="failed", ended=now(), **{ATTEMPTS: attempts})


def with_times(run: RunDir, attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest attempt with the times that were recorded while it ran."""
    times = read_json(run.monitor / TIMES)
    with suppress(TypeError, KeyError):
        known = {**attempt, "until": times["until"], "seconds": times["seconds"]}
        if times["until"] >= attempt["started"] and "seconds" not in attempt and fits(known, ATTEMPT):
            return known
    return {**attempt}


def iso_from_unix(seconds: str) -> str:
    """Convert unix seconds to the format of `now`. Raises ValueError, OverflowError, OSError."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")


def next_start(environ: Mapping[str, str]) -> str:
    """Return the value of `STARTED` that names a further start of these ranks."""
    before = environ.get(STARTED, "")
    return f"{max(time.time(), int(before) + 1 if before.isdecimal() else 0):.0f}"


def running_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of this process's job in run folders. Slurm needs `job_name`."""
    return next((environ[name] for name in JOB_VARIABLES if environ.get(name)), None)


def job_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of this job for Slurm commands: `24_1` for a member of an array.

    One member's plain job id is also the id of the array, and means all members to squeue, scontrol and scancel.
    """
    array, member = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job = running_job(environ)
    return job and (environ.get("TRAIN_JOB") or (f"{array}_{member}" if array and member else job))


def hosts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the nodes of this job, from TRAIN_HOSTS. Without a job, this machine."""
    listed = environ.get("TRAIN_HOSTS")
    return [h.rpartition(":")[0] for h in listed.split(",")] if listed else [socket.gethostname()]


def job_ids(run: RunDir, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the ids of the jobs that were submitted for this run, and of the running one."""
    known, running = read_text(run.jobs).split() if os.path.lexists(run.jobs) else [], running_job(environ)
    # a member of an array is listed as 7_2, but runs under another job id
    member = environ.get("SLURM_ARRAY_JOB_ID")
    return known if not running or running in known or member else [*known, running]


def read_logged_step(run: RunDir) -> int:
    """Return the last step in metrics.csv, or 0."""
    steps = re.findall(r"^([0-9]{1,19})(?:,|$)", try_read(run.metrics_csv, largest=inf), re.M)
    return max(map(int, steps), default=0)


def read_recorded_step(run: RunDir) -> int:
    """Return the last step that `record_step` wrote, or 0."""
    with suppress(ValueError):
        return int(try_read(run.path / STEPS))
    return 0


def record_step(run: RunDir, step: int) -> None:
    """Write the number of optimizer steps done. Disk errors are ignored."""
    with suppress(OSError):
        write_atomic(run.path / STEPS, f"{step}\n", flush=False)


def step_time(attempts: Sequence[Mapping[str, Any]]) -> tuple[float, float, float | None]:
    """Return the seconds in steps, those of them that a rank waited for data, and the efficiency, from 0 to 1, if it was measured."""
    known = [a["seconds"] for a in attempts if isinstance(a.get("seconds"), Mapping)]
    step, data, others = (sum(s.get(name) or 0.0 for s in known) for name in ("step", "data", "others"))
    measured = step > data and any("others" in s for s in known)
    return step, data, max(0.0, 1 - others / (step - data)) if measured else None


CAUSE, NODE = "cause", "node"
"""What `claim_first` is called with by a rank that fails for its own reason, not because another rank failed, and for its node's name."""


def append_debug(run: RunDir, writer: str, text: str) -> Path | None:
    """Append `text` to the debug file of a writer, else to a temporary file. Return the file, or None if neither can be written."""
    content = f"{now()}\n{text.rstrip()}\n\n".encode(errors="backslashreplace")
    file = run.debug / f"{launch_id()}-{writer}.txt"
    with suppress(OSError):
        make_folder(run.debug)
        with BufferedWriter(open_file(file, "ab")) as log:
            log.write(content)
        return file
    with suppress(OSError):
        number, name = tempfile.mkstemp(".txt", f"debug-{run.id}-{writer}-")
        with open(number, "wb") as log:
            log.write(content)
        return Path(name)
    return None


def claim_first(run: RunDir, what: str, writer: str) -> str:
    """Return the first writer of this launch that claimed `what`, else `writer`."""
    file = run.debug / f"{launch_id()}-{what}.txt"
    with suppress(OSError):
        make_folder(run.debug)
        try:
            with open(file, "x", encoding="utf-8", errors="backslashreplace") as claimed:
                claimed.write(f"{writer}\n")
        except FileExistsError:
            return read_text(file).strip() or "another one"
    return writer


def read_claim(run: RunDir, what: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the writer of this environment's launch that claimed `what`, or ""."""
    return try_read(run.debug / f"{launch_id(environ)}-{what}.txt").strip()


def describe_exit_code(code: int) -> str:
    """Describe an exit code of a shell, where 128 + n means signal n."""
    number = code - 128
    return f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"


def launch_id(environ: Mapping[str, str] = os.environ) -> str:
    """Return a name for this launch, equal in all ranks, such as `12-1795392794`."""
    number = environ.get(STARTED) or environ.get("MASTER_PORT") or os.getpid()
    return f"{running_job(environ) or 'local'}-{number}"

"""A job's batch script in the real bash, with shell lines as Slurm's programs."""

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import write_frozen
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script.job import Job, make_job
from train_anywhere.slurm.script.render import render

SCRATCH = {"USER": "me", "SCRATCH": "/scratch/me"}
Ask = Callable[..., Request]
"""`ask("cluster=slurm ...", folder="/home/me")`: the request of a job."""


def make(make_config: Callable[..., Config], *overrides: str, **changes: object) -> Job:
    made = make_job(make_config("cluster=slurm", *overrides), "/run", "/run/code")
    cluster = {k: changes.pop(k) for k in list(changes) if hasattr(made.cluster, k)}
    return dataclasses.replace(made, cluster=dataclasses.replace(made.cluster, **cluster), **changes)


RECORD_STOP = "RunDir(Path(sys.argv[-1])).update(state='preempted')"
RECORD_START = "RunRecorder(RunDir(Path(sys.argv[-1]))).record_start(1)"


SCONTROL = """case "$*" in
"show job"*) echo "JobId=7 JobState=RUNNING BatchFlag={batch}" ;;
requeue*) echo "$@" >>{folder}/requeued ;;
*) echo node1 ;;
esac"""


def python(statement: str) -> str:
    """A shell line that runs a statement of the training, whose last argument is the run folder."""
    modules = "import sys; from pathlib import Path; from train_anywhere.runs.folder import RunDir"
    modules += "; from train_anywhere.runs.recorder import RunRecorder"
    code = f"{modules}; {statement}"
    folders = f"PYTHONPATH={shlex.quote(str(ENGINE))} TRAIN_ROOT={shlex.quote(str(ROOT))}"
    return f'{folders} {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"'


def snapshot(folder: Path) -> None:
    """Link what a job's code snapshot has into a folder."""
    for path in (ENGINE / "train_anywhere", ROOT / "configs", ROOT / "src"):
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def tool(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def render_supervised(job: Job, supervisor: str) -> str:
    """Return a job's script with another interpreter of the supervisor, which is named first."""
    return render(job).replace(job.supervisor, shlex.quote(supervisor), 1)


def run_script(
    make_config: Callable[..., Config],
    folder: Path,
    srun: str,
    state: str = "queued",
    prepare: Callable[[RunDir], object] = lambda run: None,
    side: str = "exec cat",
    warm: str = "exit 1",
    environ: Mapping[str, str] = {},
    words: Sequence[str] = (),
    scontrol: str = "echo node1",
    supervisor: str | None = None,
    **changes: object,
) -> subprocess.CompletedProcess[str]:
    """Run a one-rank job's script with shell lines as the srun of ranks, monitor and forks."""
    RunDir(folder).update(state=state)
    snapshot(folder)
    write_frozen(RunDir(folder), make_config(*words), [])
    prepare(RunDir(folder))
    tool(
        folder / "srun",
        f'case "$*" in *train_anywhere.features.node*) {side}; exit ;; *warm_node*) {warm}; exit ;; esac; {srun}',
    )
    tool(folder / "scontrol", scontrol)
    script = folder / "job.sbatch"
    job = make(make_config, *words, run=str(folder), code=str(folder), **changes)
    script.write_text(render_supervised(job, supervisor or job.supervisor))
    own = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    environ = {"SLURM_JOB_NODELIST": "node1", **environ, **own}
    # like Slurm, which writes a file: the supervisor reads its own log
    with open(folder / "errors", "w") as log:
        done = subprocess.run(
            ["bash", str(script)], env=environ, stdout=subprocess.PIPE, stderr=log, text=True, timeout=300
        )
    done.stderr = (folder / "errors").read_text()
    return done


class Scripts:
    """Scripts of jobs on `cluster=slurm`, rendered, or run by bash in a folder."""

    def __init__(self, make_config: Callable[..., Config], folder: Path) -> None:
        self.make_config, self.folder = make_config, folder

    def make(self, *overrides: str, **changes: object) -> Job:
        """Return a job with other keys, and with other fields of the job or its cluster."""
        return make(self.make_config, *overrides, **changes)

    def render(self, *overrides: str, **changes: object) -> str:
        """Return the script of such a job."""
        return render(self.make(*overrides, **changes))

    def run(self, srun: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a one-rank job's script with a shell line as its srun."""
        return run_script(self.make_config, self.folder, srun, **options)

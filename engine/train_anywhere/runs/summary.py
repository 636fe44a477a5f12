"""The lines printed when a run ends: results, paths, and the next command."""

import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.files import HAS_PROJECT, ROOT
from train_anywhere.files.atomic import read_json
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.output import user_frame
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.facts import resume_summary
from train_anywhere.runs.folder import RunDir

COLUMN, MOST_CHARACTERS = 15, 300
"""Width of the column with the names of rows, and largest length of an error message in one line; the log has all of it."""

NAN_ADVICE = (
    "try a lower optimizer.lr, trainer.gradient_clip_val=1.0, or trainer.precision=32 instead of 16-mixed"
)
"""What to try after a loss of nan or inf."""

ON = "TRAIN_ON"
"""Variable with the name that this machine has on the one that has sent the command here."""


def format_summary(run: RunDir, config: Config, signal: str | None = None, report: Sequence[str] = ()) -> str:
    """Return the lines to print when a run has ended. `report` are those of its report."""
    info = run.read_info()
    metrics = info.get("metrics", {})
    tested = {k: math.nan if v is None else v for k, v in metrics.items() if "test" in k}
    # the end of its sweep has the next commands
    member = info.get("launch") == "local" and run.id.count("-") > 2
    bad, by = find_nonfinite_loss(metrics), "Ctrl-C" if signal == "SIGINT" else signal
    board = f"{command_path('tensorboard')} --logdir {shlex.quote(display_path(run.path.parent))}"
    rows = {
        "Test": "   ".join(f"{name} {value:.4f}" for name, value in tested.items()),
        "Warning": bad and f"the final {bad} is not a number",
        "Stopped": by and f"by {by} in epoch {info['epoch'] + 1}, after {info['step']} steps",
        "Attempts": resume_summary(run, info),
        "Run folder": display_path(run.path),
        "Checkpoint": info.get("checkpoint") and display_path(Path(info["checkpoint"])),
        "TensorBoard": board if config.monitor.tensorboard and not member else "",
    }
    lines = [f"{name + ':':<{COLUMN}}{one_line(text)}" for name, text in rows.items() if text] + [*report]
    command = ""
    if signal and run.config.exists():  # a folder that was removed meanwhile can't be resumed
        command = resume_command(run)
    elif info.get("checkpoint"):
        command = f"{train_command('evaluate.py')} {shlex.quote(display_path(run.path))}"
    if command and not member:
        lines.append(f"{'Next:':<{COLUMN}}{one_line(command)}")
    return "\n" + fit("\n".join(lines), terminal_width(), COLUMN)


def find_nonfinite_loss(metrics: Mapping[str, float | None]) -> str | None:
    """Return the name of the first loss that is nan, inf or (in run.json) null, if any."""
    losses = ((name, value) for name, value in metrics.items() if "loss" in name)
    return next((name for name, value in losses if value is None or not math.isfinite(value)), None)


def not_recorded_message(run: RunDir, state: str) -> str:
    """Return the message for a run whose end could not be written to run.json."""
    return (
        f"the run is {state}, but {run.info_file} can't be written, so it does not record that; make room there, then: "
        f"{resume_command(run)}"
    )


def train_command(script: str = "train.py") -> str:
    """Return the command that calls a script of src from the current folder, or on a host from the machine that knows it by a name."""
    if not HAS_PROJECT:
        return "python -m train_anywhere"
    if there := os.environ.get(ON):
        return f"python src/{script} {'--on ' if script == 'jobs.py' else 'on='}{there}"
    return f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / script))}"


def as_typed(message: str) -> str:
    """Return a message with the commands that exist here: without a project they are those of `python -m train_anywhere`."""
    if HAS_PROJECT:
        return message
    message = re.sub(r"(?<![/\w])configs/(?=hosts/|local/)", "~/.config/train-anywhere/", message)
    message = re.sub(r"(?:python )?(?:src/)?\bjobs\.py", "python -m train_anywhere", message)
    return re.sub(r"python \S*slurm/new_cluster\.py", "python -m train_anywhere new-cluster", message)


def resume_command(run: RunDir, path: str = "") -> str:
    """Return the command that resumes a training or a program, or its copy at `path`."""
    if not HAS_PROJECT:
        return f"{train_command()} resubmit {shlex.quote(path or display_path(run.path))}"
    script = "run.py" if is_program(run) else "train.py"
    return f"{train_command(script)} resume={shlex.quote(path or display_path(run.path))}"


def is_program(run: RunDir) -> bool:
    """Return whether the run is one of `src/run.py`, which has no model to evaluate."""
    return read_json(run.info_file).get("framework") == "program"


def describe_error(error: BaseException) -> str:
    """Return type, message and user's line of an error. A ProjectError gives its message."""
    if isinstance(error, ProjectError):
        return one_line(" ".join(str(error).split())[:MOST_CHARACTERS])
    message = ""
    with suppress(Exception):  # user code may define __str__
        message = next((line for line in str(error).splitlines() if line.strip()), "")[:MOST_CHARACTERS]
    frame = user_frame(error)
    at = f", at {display_path(Path(frame.filename))}:{frame.lineno} in {frame.name}" if frame else ""
    return one_line(f"{type(error).__name__}{message and ': '}{message}{at}")


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    minutes, whole = round(seconds / 60), round(seconds)
    if whole < 90:
        return f"{whole} s"
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def command_path(name: str) -> str:
    """Return how to call a program of this environment: by name if on the PATH."""
    here = Path(sys.executable).parent
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    return name if str(here) in on_path else shlex.quote(display_path(here / name))


def display_path(path: Path) -> str:
    """Return a path to display: relative if it is below the current folder, else absolute."""
    path = path if path.is_absolute() else Path(os.path.abspath(path))
    try:
        folders = (shell_folder(), Path.cwd())
    except FileNotFoundError:  # the current folder was deleted
        return str(path)
    return next((str(path.relative_to(here)) for here in folders if path.is_relative_to(here)), str(path))

"""What is printed when a run ends: the result, where everything is, and what to type next."""

import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.config.schema import Config
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.files.typed_paths import shell_folder
from train_anywhere.runs.folder import RunDir

NAN_ADVICE = (
    "try a lower optimizer.lr, trainer.gradient_clip_val=1.0, or trainer.precision=32 instead of 16-mixed"
)
"""What to try after a loss of nan or inf."""


def summary(run: RunDir, config: Config, signal: str | None = None) -> str:
    """The closing lines of a run, from its run.json.

    Args:
        signal: name of the signal that ended the run early, if one did.
    """
    info = run.info()
    metrics = info.get("metrics", {})
    rows = []
    if tested := [name for name in metrics if "test" in name]:
        rows.append(("Test", "   ".join(f"{name} {number(metrics, name)}" for name in tested)))
    if bad := not_finite(metrics):
        rows.append(("Warning", f"the final {bad} is not a number"))
    if signal:
        rows.append(("Stopped", f"by {signal} in epoch {info['epoch'] + 1}, after {info['step']} steps"))
    rows.append(("Run folder", display_path(run.path)))
    if info.get("checkpoint"):
        rows.append(("Checkpoint", display_path(Path(info["checkpoint"]))))
    if config.monitor.tensorboard:
        rows.append(
            (
                "TensorBoard",
                f"{command_path('tensorboard')} --logdir {shlex.quote(display_path(run.path.parent))}",
            )
        )
    rows.append(("Next", next_command(run, config, signal)))
    return "\n" + "\n".join(f"{name + ':':<15}{one_line(text)}" for name, text in rows)


def not_finite(metrics: Mapping[str, float | None]) -> str | None:
    """The first loss that is nan or inf; in run.json it is null."""
    for name, value in metrics.items():
        if "loss" in name and (value is None or not math.isfinite(value)):
            return name
    return None


def not_recorded(run: RunDir, state: str) -> str:
    """Return the message for a run whose end the disk did not take."""
    return (
        f"the run is {state}, but {run.info_file} can't be written, so it does not record that; make room there, then: "
        f"{train_command()} resume={shlex.quote(display_path(run.path))}"
    )


def next_command(run: RunDir, config: Config, signal: str | None) -> str:
    """A command worth trying after this run."""
    if signal and run.config.exists():  # a folder that was removed meanwhile can't be resumed
        return f"{train_command()} resume={shlex.quote(display_path(run.path))}"
    others = [name for name in SUPPORTED if name != config.framework]
    first = config.framework == next(iter(SUPPORTED))
    if (
        others and first and len({*config.task.target.values()}) > 1
    ):  # the task has a side of its own for each
        return f"{train_command()} framework={others[0]}"
    swept = (
        "optimizer.lr=0.001,0.003 seed=1,2" if config.task.metrics else "seed=1,2"
    )  # other tasks may have their own optimizer
    return f"{train_command()} -m {swept}"


def train_command() -> str:
    """How to call this program from here."""
    return f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'train.py'))}"


def number(metrics: Mapping[str, float | None], name: str) -> str:
    """A metric to read; run.json has null where it was nan or inf."""
    value = metrics.get(name)
    return "nan" if value is None else f"{value:.4f}"


def command_path(name: str) -> str:
    """A program of the environment in use: by name where the shell finds it, else by its path."""
    here = Path(sys.executable).parent
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    return name if str(here) in on_path else shlex.quote(display_path(here / name))


def display_path(path: Path) -> str:
    """A path as a person would type it: relative to the current folder where it lies below, else absolute."""
    path = path if path.is_absolute() else Path(os.path.abspath(path))
    try:
        folders = (shell_folder(), Path.cwd())
    except FileNotFoundError:  # a folder that was deleted meanwhile
        return str(path)
    return next((str(path.relative_to(here)) for here in folders if path.is_relative_to(here)), str(path))

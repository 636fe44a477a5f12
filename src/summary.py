"""What a person reads when a run ends: the result, where everything is, and what to type next."""

import os
import shlex
import sys
from pathlib import Path

from src.rundir import RunDir
from src.schema import Config


def summary(run: RunDir, config: Config, signal: str | None = None) -> str:
    """The closing lines of a run, from its run.json.

    Args:
        signal: name of the signal that ended the run early, if one did.
    """
    info = run.info()
    metrics = info.get("metrics", {})
    rows = []
    if "test/acc" in metrics:
        rows.append(("Test accuracy", f"{metrics['test/acc']:.4f}   (test/loss {metrics['test/loss']:.4f})"))
    if signal:
        rows.append(("Stopped", f"by {signal} in epoch {info['epoch'] + 1}, after {info['step']} steps"))
    rows.append(("Run folder", shown(run.path)))
    if info.get("checkpoint"):
        rows.append(("Checkpoint", shown(Path(info["checkpoint"]))))
    if config.monitor.tensorboard:
        rows.append(("TensorBoard", f"{tool('tensorboard')} --logdir {shlex.quote(shown(run.path.parent))}"))
    rows.append(("Next", next_command(run, config, signal)))
    return "\n" + "\n".join(f"{label + ':':<15}{text}" for label, text in rows)


def next_command(run: RunDir, config: Config, signal: str | None) -> str:
    """A command worth trying after this run."""
    if signal:
        return f"{train_command()} resume={shlex.quote(shown(run.path))}"
    if config.framework == "lightning":
        return f"{train_command()} framework=keras"
    return f"{train_command()} -m optimizer.lr=0.001,0.003 seed=1,2"


def train_command() -> str:
    """How to call this program from here."""
    return f"{tool('python')} src/train.py"


def tool(name: str) -> str:
    """A program of the environment in use: by name where the shell finds it, else by its path."""
    here = Path(sys.executable).parent
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    return name if str(here) in on_path else shown(here / name)


def shown(path: Path) -> str:
    """A path as a person would type it: relative to the current folder where it lies below, else absolute."""
    path = Path(os.path.abspath(path))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)

"""Resuming a complete run with nothing left to train: a message is printed, and the test is not repeated."""

import shlex

from train_anywhere.config.limits import duration_seconds
from train_anywhere.config.schema import Config
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path, format_summary, train_command


def is_complete(run: RunDir, config: Config) -> bool:
    """Return whether the run is complete, and `config`, which is to resume it, requests no more training and has no other program.

    Raises:
        CheckpointError: its config.yaml can't be read.
    """
    if run.read_info().get("state") != "completed":
        return False
    frozen, trainer = read_frozen(run), config.trainer
    if config.program:
        return bool(config.program.command == frozen["program"]["command"])
    before = frozen["trainer"]
    longer = trainer.max_epochs > before["max_epochs"] or _is_more(before["max_steps"], trainer.max_steps)
    longer = longer or _is_more(*map(_time_limit, (before["max_time"], trainer.max_time)))
    longer = longer or (trainer.min_epochs or 1) > (before["min_epochs"] or 1)
    return not longer and before["early_stopping"] == vars(trainer.early_stopping)


def _is_more(before: int | None, now: int | None) -> bool:
    return before is not None and (now is None or now > before)


def _time_limit(value: str | None) -> int | None:
    return None if value is None else duration_seconds(value)


def completion_message(run: RunDir, config: Config) -> str:
    """Return the message that is printed instead of training; its example doubles the limits that the run had.

    Raises:
        CheckpointError: the run's config.yaml can't be read.
    """
    folder, before = display_path(run.path), read_frozen(run)["trainer"]
    if config.program:
        return f"{folder} is complete. To start a new run: {train_command('run.py')} -- {printable(shlex.join(config.program.command))}"
    message = f"{folder} is complete: nothing is left to train."
    if not config.trainer.fast_dev_run:
        limits = {key: before[key] for key in ("max_epochs", "max_steps") if before[key]}
        more = " ".join(f"trainer.{key}={2 * limit}" for key, limit in limits.items())
        more += " trainer.max_time=null" if before["max_time"] else ""
        message += f" To train longer: {train_command()} resume={shlex.quote(folder)} {more}"
    return f"{fit(message, terminal_width())}\n{format_summary(run, config)}"

"""Resuming a complete run with nothing left to train: a message is printed, and the test is not repeated."""

import shlex

from train_anywhere.config.schema import Config, Trainer
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path, format_summary, train_command


def is_complete(run: RunDir, trainer: Trainer) -> bool:
    """Return whether the run is complete, and `trainer`, which is to resume it, does not request more training than it had.

    Raises:
        CheckpointError: its config.yaml can't be read.
    """
    if run.read_info().get("state") != "completed":
        return False
    before = read_frozen(run)["trainer"]
    longer = trainer.max_epochs > before["max_epochs"] or _is_more(before["max_steps"], trainer.max_steps)
    longer = longer or (trainer.min_epochs or 1) > (before.get("min_epochs") or 1)
    return not longer and before["early_stopping"] == vars(trainer.early_stopping)


def _is_more(before: int | None, now: int | None) -> bool:
    return before is not None and (now is None or now > before)


def completion_message(run: RunDir, config: Config) -> str:
    """Return the message that is printed instead of training."""
    trainer, folder = config.trainer, display_path(run.path)
    steps, epochs = trainer.max_steps, trainer.max_epochs
    more = f"max_steps={2 * steps}" if steps else f"max_epochs={2 * epochs}"
    return (
        f"{folder} is complete: nothing is left to train. To train on: "
        f"{train_command()} resume={shlex.quote(folder)} trainer.{more}\n{format_summary(run, config)}"
    )

"""A run that went to its end: resumed with nothing new to do, it says so instead of testing again."""

import shlex

from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path, summary, train_command


def is_complete(run: RunDir, config: Config) -> bool:
    """Whether the run is over, and `config`, which is to resume it, asks for no more training than it had.

    Raises:
        CheckpointError: where its config.yaml can't be read.
    """
    if config.from_scratch or run.info().get("state") != "completed":
        return False
    before, now = read_frozen(run)["trainer"], config.trainer
    longer = now.max_epochs > before["max_epochs"] or _more(before["max_steps"], now.max_steps)
    return not longer and before["early_stopping"] == vars(now.early_stopping)


def _more(before: int | None, now: int | None) -> bool:
    return before is not None and (now is None or now > before)


def complete(run: RunDir, config: Config) -> str:
    """What is printed instead of training."""
    trainer, folder = config.trainer, display_path(run.path)
    more = (
        f"max_steps={2 * trainer.max_steps}" if trainer.max_steps else f"max_epochs={2 * trainer.max_epochs}"
    )
    return (
        f"{folder} is complete: nothing is left to train. To train on: "
        f"{train_command()} resume={shlex.quote(folder)} trainer.{more}\n{summary(run, config)}"
    )

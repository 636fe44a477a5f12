"""Create the loggers of a configuration for one rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

from train_anywhere.config.choices import Logger
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.keys import flatten
from train_anywhere.config.load import to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.tracking.guards import Guard, Sender, report_failure

GuardedLogger = Guard | Sender
"""A logger whose `log_metrics(metrics, step)` and `finalize(status)` never raise; `.logger` is the object made from the configuration."""


def open_loggers(config: Config, run: RunDir, first: bool) -> list[GuardedLogger]:
    """Return the loggers of the `loggers` section; none on other ranks than 0, and none with `trainer.fast_dev_run`.

    Args:
        config: the configuration.
        run: the run folder.
        first: whether this is rank 0.

    Raises:
        ConfigError: a target does not accept its arguments, or its package is not installed.
    """
    if not first or config.trainer.fast_dev_run:
        return []
    opened = (
        _open_guarded(name, partial(make_logger, name, section, config, run))
        for name, section in config.loggers.items()
    )
    return [logger for logger in opened if logger is not None]


def make_logger(name: str, section: Logger, config: Config, run: RunDir) -> Any:
    """Return the unguarded object that a section of `loggers` names; it gets those facts about the run that it has arguments for.

    Raises:
        ConfigError: the target does not accept its arguments.
        Exception: anything that the target raises.
    """
    return instantiate(
        section,
        f"loggers.{name}",
        config.framework,
        folder=str(run.path),
        save_dir=str(run.path),
        dir=str(run.path),
        run_id=tracker_run_id(run),
        internet=config.cluster.site.internet,
        parameters=flatten(to_tree(config)),  # keeps `${oc.env:TOKEN}` unresolved: the value may be a secret
    )


def tracker_run_id(run: RunDir) -> str:
    """Return the id of the tracked run: the name of the run folder, plus a number after `from_scratch=true`, which starts a new run."""
    before = sum(1 for _ in run.path.glob("before-*"))
    return f"{run.id}-{before + 1}" if before else run.id


def _open_guarded(name: str, make: Callable[[], Any]) -> GuardedLogger | None:
    try:
        logger = make()
    except ProjectError:
        raise  # the user can fix it, and nothing has been trained yet
    except Exception as error:
        report_failure(name, error, "training continues without it")
        return None
    # the engine's own loggers may be called from any thread
    is_own = type(logger).__module__.startswith(f"{__package__}.")
    return Sender(name, logger) if is_own else Guard(name, logger)

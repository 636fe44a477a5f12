"""Make the loggers of a configuration for one rank."""

from collections.abc import Iterable
from typing import Any

from train_anywhere.config.choices import Logger
from train_anywhere.config.flat import flatten
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.load import as_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.tracking.guards import Guard, Sender, say
from train_anywhere.training.tracking.once import Once, Pair

Tracked = Guard | Sender
"""A logger of the configuration, `log_metrics(metrics, step)` and `finalize(status)`: neither raises. `.logger` is the object itself."""


def open_loggers(
    config: Config, run: RunDir, first: bool, step: int = 0, seen: Iterable[Pair] = ()
) -> list[Tracked]:
    """The loggers that `loggers` names; none on other ranks than the first, and none with `trainer.fast_dev_run`.

    Args:
        first: whether this is rank 0.
        step: optimizer steps done by earlier attempts, at the checkpoint that training starts from.
        seen: what metrics.csv held before it was cut back to that step (`CsvLog.held`), for loggers that do not know
            themselves what they were given.

    Raises:
        ConfigError: a target does not take its arguments, or its package is not installed.
    """
    if not first or config.trainer.fast_dev_run:
        return []
    seen = frozenset(seen)
    opened = (_open(name, section, config, run, step, seen) for name, section in config.loggers.items())
    return [logger for logger in opened if logger is not None]


def make_logger(
    name: str, section: Logger, config: Config, run: RunDir, step: int = 0, seen: Iterable[Pair] = ()
) -> Any:
    """The object that a section of `loggers` names, given what it takes of all that is known of the run; nothing guards it.

    Raises:
        ConfigError: the target does not take its arguments.
        Exception: whatever it raises itself.
    """
    return instantiate(
        section,
        f"loggers.{name}",
        config.framework,
        folder=str(run.path),
        save_dir=str(run.path),
        dir=str(run.path),
        run_id=tracked_id(run),
        internet=config.cluster.site.internet,
        parameters=flatten(as_tree(config)),  # `${oc.env:TOKEN}` as it was typed: the value may be a secret
        first_step=max(0, step - 1),  # a framework may count the steps of a module's own metrics from 0
        seen=seen,
    )


def tracked_id(run: RunDir) -> str:
    """The name of the run folder; what `from_scratch=true` trains there is another run for a tracker, so that one gets a number."""
    before = sum(1 for _ in run.path.glob("before-*"))
    return f"{run.id}-{before + 1}" if before else run.id


def _open(
    name: str, section: Logger, config: Config, run: RunDir, step: int, seen: frozenset[Pair]
) -> Tracked | None:
    try:
        logger = make_logger(name, section, config, run, step, seen)
    except ProjectError:
        raise  # the user can mend it, and nothing has been trained yet
    except Exception as error:
        say(name, error, "training goes on without it")
        return None
    # ours may be called from any thread, and know themselves what they hold
    return Sender(name, logger) if _is_ours(logger) else Guard(name, logger, Once(seen))


def _is_ours(logger: object) -> bool:
    return type(logger).__module__.startswith(f"{__package__}.")

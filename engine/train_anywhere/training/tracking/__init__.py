"""Experiment trackers and all other loggers, whose failures can't stop training.

    python src/train.py loggers=wandb
    python src/train.py loggers=[wandb,mlflow] loggers.mlflow.tracking_uri=http://mlflow.site:5000

`Wandb` and `MLflow` are independent of the framework; their packages are imported only when they are chosen. A run stays one tracked run
when it is stopped and resumed: the name of the run folder identifies it. Steps that are trained again are logged twice.
`open_loggers` creates all loggers of the configuration on rank 0.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.keys import OpenSection, flatten
from train_anywhere.config.load import to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.runs.folder import RunDir


class GuardedLogger:
    """A logger, with its configuration's name, that gets metrics until it fails. No method raises."""

    def __init__(self, name: str, logger: Any) -> None:
        self.name, self.logger = name, logger
        self.failed = False

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of this number of optimizer steps."""
        if not self.failed:
            self._try(lambda: self.logger.log_metrics(metrics, step))

    def finalize(self, status: str) -> None:
        """Close the logger. The `status` is completed, preempted or failed."""
        if hasattr(self.logger, "finalize"):
            self._try(lambda: self.logger.finalize(status))

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            if not self.failed:
                _report(self.name, error)
            self.failed = True


def open_loggers(config: Config, run: RunDir, first: bool) -> list[GuardedLogger]:
    """Return the loggers that can be created, on the `first` rank and without `fast_dev_run`. Raises as `open_logger`."""
    sections = config.loggers if first and not config.trainer.fast_dev_run else {}
    opened = (open_logger(name, section, config, run) for name, section in sections.items())
    return [logger for logger in opened if logger]


def open_logger(name: str, section: OpenSection, config: Config, run: RunDir) -> GuardedLogger | None:
    """Return a logger, or None after a line about its failure, such as a server that can't be reached.

    Raises ConfigError: it takes other arguments, has no `log_metrics`, or its package is not installed.
    """
    try:
        logger = make_logger(name, section, config, run)
    except ProjectError:
        raise  # the user can fix it, and nothing has been trained yet
    except Exception as error:
        _report(name, error)
        return None
    if not callable(getattr(logger, "log_metrics", None)):
        raise ConfigError(
            f"loggers.{name} is a {type(logger).__qualname__}, which has no log_metrics(metrics, step)."
        )
    return GuardedLogger(name, logger)


def make_logger(name: str, section: OpenSection, config: Config, run: RunDir) -> Any:
    """Return the object of a section of `loggers`, with facts for it. Raises any error."""
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
    """Return the run id for trackers, with a number after `from_scratch=true`."""
    before = sum(1 for _ in run.path.glob("before-*"))
    return f"{run.id}-{before + 1}" if before else run.id


def _report(name: str, error: Exception) -> None:
    """Print one line on standard error: which logger failed, and why."""
    why = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    print(f"loggers.{name} failed ({why}); training continues without it.", file=sys.stderr, flush=True)

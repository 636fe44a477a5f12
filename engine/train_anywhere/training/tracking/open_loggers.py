"""Create the loggers of a configuration, whose failures don't stop training."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from train_anywhere.config.choices import Logger
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.keys import flatten
from train_anywhere.config.load import to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError
from train_anywhere.runs.folder import RunDir

RETRY_S = 60.0
"""Seconds until a rejected row is sent again."""

TRIES = 5
"""Number of attempts to send a row; a row that is always rejected must not block the others."""

CLOSE_S = 45.0
"""Seconds that the end of training waits for unsent rows; a job that is being stopped has about two minutes."""


def report_failure(name: str, error: object, consequence: str) -> None:
    """Print one line on standard error: which logger failed, why, and what happens next."""
    why = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    print(f"loggers.{name} failed ({why}); {consequence}.", file=sys.stderr, flush=True)


class Guard:
    """A logger, with its configuration's name, called in the training thread until it fails."""

    def __init__(self, name: str, logger: Any) -> None:
        self.name, self.logger = name, logger
        self.failed = False

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of this number of optimizer steps."""
        self._try(lambda: self.logger.log_metrics(metrics, step))

    def finalize(self, status: str) -> None:
        """Close the logger. The `status` is completed, preempted or failed."""
        if hasattr(self.logger, "finalize"):
            self._try(lambda: self.logger.finalize(status))

    def _try(self, call: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:
            self.failed = True
            report_failure(self.name, error, "training continues without it")


class Sender:
    """A logger that is called in its own thread. A rejected row is sent again."""

    def __init__(self, name: str, logger: Any) -> None:
        self.name, self.logger = name, logger
        self.lost = 0
        self._rows: deque[tuple[dict[str, float], int]] = deque()
        self._status: str | None = None
        self._rejections = 0  # of the first row
        self._reported = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"loggers.{name}", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue the metrics for sending, and return at once."""
        with self._changed:
            self._rows.append((dict(metrics), step))
            self._changed.notify()

    def finalize(self, status: str) -> None:
        """Send the remaining rows and close the logger once, within `CLOSE_S` seconds."""
        if self._status is not None:
            return
        with self._changed:
            self._status = status
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if lost := self.lost + len(self._rows):
            report_failure(self.name, f"{lost} rows were not sent", "metrics.csv has them")

    def _work(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._rows or self._status is not None)
                closing = self._status is not None
            while self._rows and (self._send() or closing):
                pass
            if self._rows:
                with self._changed:
                    self._changed.wait_for(lambda: self._status is not None, RETRY_S)
        self._try(lambda: self.logger.finalize(self._status))

    def _send(self) -> bool:
        """Send the first row and return whether it was accepted. It has `TRIES` tries."""
        metrics, step = self._rows[0]
        accepted = self._try(lambda: self.logger.log_metrics(metrics, step))
        self._rejections = 0 if accepted else self._rejections + 1
        lost = not accepted and (self._rejections >= TRIES or self._status is not None)
        if accepted or lost:
            self.lost += lost
            self._rejections = 0
            self._rows.popleft()
        return accepted

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except Exception as error:
            if not self._reported:
                self._reported = True
                report_failure(self.name, error, "training continues, and the metrics will be sent again")
            return False
        return True


GuardedLogger = Guard | Sender
"""A logger whose `log_metrics(metrics, step)` and `finalize(status)` never raise; `.logger` is the object made from the configuration."""


def open_loggers(config: Config, run: RunDir, first: bool) -> list[GuardedLogger]:
    """Return the loggers, on the `first` rank and without `fast_dev_run`.

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

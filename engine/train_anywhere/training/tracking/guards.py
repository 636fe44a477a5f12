"""Between training and a logger that may fail, be slow or never answer: one line says what failed, and training goes on."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from train_anywhere.training.tracking.once import Once

RETRY_S = 60.0
"""Seconds until a row that was refused is offered again."""

TRIES = 5
"""How often a row is offered; one that is always refused must not hold up the others."""

CLOSE_S = 45.0
"""Seconds that the end of training waits for what is not sent yet; a job that is being stopped has about two minutes."""


def say(name: str, error: object, then: str) -> None:
    """One line to the log: which logger failed, why, and what becomes of it."""
    why = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    print(f"loggers.{name} failed ({why}); {then}.", file=sys.stderr, flush=True)


class Guard:
    """Calls a logger in the training thread; one that fails is not called any more.

    Args:
        name: of the logger in the configuration.
        once: which metrics it was given by earlier attempts.

    Attributes:
        logger: the object that the configuration named.
    """

    def __init__(self, name: str, logger: Any, once: Once) -> None:
        self.name, self.logger, self.once = name, logger, once
        self.failed = False

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log what no earlier attempt has logged for this number of optimizer steps."""
        if fresh := self.once.fresh(metrics, step):
            self._try(lambda: self.logger.log_metrics(fresh, step))

    def finalize(self, status: str) -> None:
        """The attempt has ended: completed, preempted or failed."""
        if hasattr(self.logger, "finalize"):
            self._try(lambda: self.logger.finalize(status))

    def _try(self, call: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:
            self.failed = True
            say(self.name, error, "training goes on without it")


class Sender:
    """Calls a logger in a thread of its own: a server that does not answer holds up nobody. A row that is refused is offered again.

    Args:
        name: of the logger in the configuration.

    Attributes:
        logger: the object that the configuration named.
    """

    def __init__(self, name: str, logger: Any) -> None:
        self.name, self.logger = name, logger
        self.lost = 0
        self._rows: deque[tuple[dict[str, float], int]] = deque()
        self._status: str | None = None
        self._refused = 0  # times that the first row was
        self._said = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"loggers.{name}", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the metrics some time later; returns at once."""
        with self._changed:
            self._rows.append((dict(metrics), step))
            self._changed.notify()

    def finalize(self, status: str) -> None:
        """The attempt has ended: send what is left and close, within `CLOSE_S` seconds. A second call does nothing."""
        if self._status is not None:
            return
        with self._changed:
            self._status = status
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if lost := self.lost + len(self._rows):
            say(self.name, f"{lost} rows were not taken", "metrics.csv has them")

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
        """Offer the first row; it stays the first where it is refused, unless that is over."""
        metrics, step = self._rows[0]
        taken = self._try(lambda: self.logger.log_metrics(metrics, step))
        self._refused = 0 if taken else self._refused + 1
        lost = not taken and (self._refused >= TRIES or self._status is not None)
        if taken or lost:
            self.lost += lost
            self._refused = 0
            self._rows.popleft()
        return taken

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except Exception as error:
            if not self._said:
                self._said = True
                say(self.name, error, "training goes on, and the metrics are offered again")
            return False
        return True

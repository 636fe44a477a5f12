"""A logger that fails."""

from collections.abc import Mapping

import pytest

from train_anywhere.training.tracking import GuardedLogger


class Logger:
    """A logger that keeps its calls and refuses the steps in `refused`."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused, self.calls = refused, 0
        self.rows: list[tuple[dict[str, float], int]] = []
        self.ended: list[str] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep a row, or raise."""
        self.calls += 1
        if step in self.refused:
            raise OSError("no route to\nhost")
        self.rows.append((dict(metrics), step))

    def finalize(self, status: str) -> None:
        """Keep how it ended."""
        self.ended.append(status)


FAILED = "loggers.mine failed (no route to host); training continues"


def test_a_guard_says_one_line_and_calls_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(refused=(2,))
    guard = GuardedLogger("mine", logger)
    for step in (1, 2, 3):
        guard.log_metrics({"a": 1.0}, step)
    guard.finalize("completed")
    assert (logger.calls, logger.ended) == (2, ["completed"])
    assert capsys.readouterr().err == f"{FAILED} without it.\n"


def test_a_guard_passes_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    guard = GuardedLogger("mine", logger)
    guard.log_metrics({"a": 1.0, "b": 2.0}, 3)
    guard.finalize("completed")
    assert logger.rows == [({"a": 1.0, "b": 2.0}, 3)]
    assert (logger.ended, capsys.readouterr().err) == (["completed"], "")
    assert guard.logger is logger


def test_a_guard_needs_no_finalize() -> None:
    GuardedLogger("mine", object()).finalize("completed")

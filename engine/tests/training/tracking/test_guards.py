"""A logger that fails, never answers, or refuses a while."""

import sys
import threading
import time
from collections.abc import Mapping

import pytest

from train_anywhere.training.tracking.open_loggers import Guard, Sender

MODULE = sys.modules[Guard.__module__]  # the package exports a function of this name


class Logger:
    """A logger that keeps its calls and refuses the steps in `refused`, for `down` all."""

    def __init__(self, refused: tuple[int, ...] = (), down: int = 0) -> None:
        self.refused, self.down, self.calls = refused, down, 0
        self.rows: list[tuple[dict[str, float], int]] = []
        self.ended: list[str] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep a row, or raise."""
        self.calls += 1
        if self.calls <= self.down or step in self.refused:
            raise OSError("no route to\nhost")
        self.rows.append((dict(metrics), step))

    def finalize(self, status: str) -> None:
        """Keep how it ended."""
        self.ended.append(status)


FAILED = "loggers.mine failed (no route to host); training continues"


def test_a_guard_says_one_line_and_calls_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(refused=(2,))
    guard = Guard("mine", logger)
    for step in (1, 2, 3):
        guard.log_metrics({"a": 1.0}, step)
    guard.finalize("completed")
    assert (logger.calls, logger.ended) == (2, [])
    assert capsys.readouterr().err == f"{FAILED} without it.\n"


def test_a_guard_passes_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    guard = Guard("mine", logger)
    guard.log_metrics({"a": 1.0, "b": 2.0}, 3)
    guard.finalize("completed")
    assert logger.rows == [({"a": 1.0, "b": 2.0}, 3)]
    assert (logger.ended, capsys.readouterr().err) == (["completed"], "")
    assert guard.logger is logger


def test_a_guard_needs_no_finalize() -> None:
    Guard("mine", object()).finalize("completed")


def test_a_sender_keeps_the_order_and_sends_all() -> None:
    logger = Logger()
    sender = Sender("mine", logger)
    for step in range(200):
        sender.log_metrics({"a": 1.0}, step)
    sender.finalize("completed")
    sender.finalize("completed")
    assert [step for _, step in logger.rows] == list(range(200))
    assert (logger.ended, sender.logger) == (["completed"], logger)


def test_what_is_refused_is_offered_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MODULE, "RETRY_S", 0.01)
    logger = Logger(down=3)
    sender = Sender("mine", logger)
    for step in range(10):
        sender.log_metrics({"a": 1.0}, step)
    wait_for(lambda: len(logger.rows) == 10)
    sender.finalize("completed")
    assert [step for _, step in logger.rows] == list(range(10))
    assert capsys.readouterr().err == f"{FAILED}, and the metrics will be sent again.\n"


@pytest.mark.parametrize("retry", [0.01, 60.0])
def test_one_bad_row_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], retry: float
) -> None:
    monkeypatch.setattr(MODULE, "RETRY_S", retry)
    logger = Logger(refused=(1,))
    sender = Sender("mine", logger)
    for step in range(4):
        sender.log_metrics({"a": 1.0}, step)
    if retry < 1:
        wait_for(lambda: len(logger.rows) == 3)
    sender.finalize("preempted")
    assert [step for _, step in logger.rows] == [0, 2, 3]
    assert logger.ended == ["preempted"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["loggers.mine failed (1 rows were not sent); metrics.csv has them."]


def test_one_that_never_answers_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MODULE, "CLOSE_S", 0.2)
    answer, answered = threading.Event(), threading.Event()

    class Silent(Logger):
        def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
            answer.wait()
            answered.set()

    sender = Sender("mine", Silent())
    for step in range(3):
        sender.log_metrics({"a": 1.0}, step)
    sender.finalize("preempted")
    assert not answered.is_set()
    assert "3 rows were not sent" in capsys.readouterr().err
    answer.set()


def wait_for(done: "object") -> None:
    """Wait up to ten seconds."""
    assert callable(done)
    end = time.monotonic() + 10
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    assert done()

"""Files in RUN/monitor with what has happened to a run, for `monitor.notify`: event-<kind>.json, and sent-<kind>.json later."""

from contextlib import suppress
from typing import Literal

from train_anywhere.monitor.live import write
from train_anywhere.runs.folder import RunDir

Kind = Literal["failed", "hung", "nan", "idle", "done"]


def record_event(run: RunDir, kind: Kind, text: str) -> None:
    """Record an event. A disk that fails loses the message, which the log has too."""
    with suppress(OSError):
        write(run.monitor / f"event-{kind}.json", {"kind": kind, "text": text})

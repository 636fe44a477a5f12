"""RUN/monitor/live.json: how far the training is, renewed by a thread of rank 0 every two seconds while anything moves."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.attempts import running_job

EVERY_S = 2.0
"""Seconds between two looks at the training."""

RESTS = 1000
"""A renewal is followed by a rest of this many times its length: 0.1 % of the time at most, on a slow disk too."""

LONGEST_REST_S = 60.0
"""What a disk that hardly answers makes of it."""

PATIENCE_S = 2.0
"""How long the end of a training waits for the last renewal: a disk may hang."""


class Live:
    """Renews the file while the training moves; the training thread does nothing for it.

    What a disk refuses is left out: the next renewal tries again.

    Args:
        run: folder of the run.
        describe: what the file says, besides job and time; called by the thread.
        moved: when the training last moved, in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        run: Path,
        describe: Callable[[], Mapping[str, Any]],
        moved: Callable[[], float],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.path = run / "monitor" / "live.json"
        self._describe, self._moved, self._job = describe, moved, running_job(environ)
        self._written: Mapping[str, Any] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="live", daemon=True)

    def start(self) -> None:
        """Write the file for the first time, in the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write how the training ended; a disk that hangs is not waited for."""
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _renew(self) -> None:
        rest = 0.0
        while not self._over.wait(rest):
            took = self._look()
            rest = min(max(EVERY_S, RESTS * took), LONGEST_REST_S)
        self._look()

    def _look(self) -> float:
        """Write what has changed; returns the seconds that took."""
        began = time.perf_counter()
        content = self._describe()
        if content != self._written:
            since = time.time() - (time.monotonic() - self._moved())
            with suppress(OSError):
                write(self.path, {"time": round(since, 1), "attempt": self._job, **content})
                self._written = content
        return time.perf_counter() - began


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step, in a folder that is made if need be.

    It need not outlive a power cut, so nothing waits until it is on the disk.

    Raises:
        OSError: the disk refuses.
    """
    text = dumps(dict(content))
    try:
        write_atomic(path, text, flush=False)
    except FileNotFoundError:
        # not made beforehand: nearly always it is there, and a shared disk answers slowly
        make_folder(path.parent)
        write_atomic(path, text, flush=False)

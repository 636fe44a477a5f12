"""Commands of tests, and waits for what they do."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train_anywhere.files import ROOT


def run_python(
    *words: str | Path, cwd: Path = ROOT, timeout: float = 300, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run this Python with arguments and return its exit code and output."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, **options)


def wait_until(
    there: Callable[[], object], process: "subprocess.Popen[Any] | None" = None, seconds: float = 200
) -> None:
    """Wait until something is true, while a process lives."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"not within {seconds} s"
        assert process is None or process.poll() is None, f"the process ended with {process.returncode}"
        time.sleep(0.02)


def start_python(*words: str | Path, **options: Any) -> "subprocess.Popen[str]":
    """Start this Python with arguments in the project, with its output as text in pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, words)], **{"cwd": ROOT, **pipes, **options})

"""Programs that `python src/run.py` starts on this machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.files import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Latest = Callable[[], Path]
RUN = [sys.executable, str(ROOT / "src" / "run.py")]
SHOW = Path(__file__).with_name("show.py")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `src/run.py` with run folders below `results`."""

    def start(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        options = {"cwd": ROOT, "timeout": 200, **options}
        return subprocess.run(
            [*RUN, f"paths.results={tmp_path / 'results'}", *words], capture_output=True, text=True, **options
        )

    return start


@pytest.fixture
def latest(tmp_path: Path) -> Latest:
    """Return a function for the newest run folder."""
    return lambda: (tmp_path / "results" / "latest").resolve()


@pytest.fixture
def script() -> Iterator[str]:
    """A program of this project that writes down what it got."""
    path = ROOT / "examples" / "programs" / f"show_{os.getpid()}.py"
    path.write_text(SHOW.read_text())
    yield str(path.relative_to(ROOT))
    path.unlink()

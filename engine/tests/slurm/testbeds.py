"""Helpers for tests of the testbed."""

import time
from collections.abc import Callable
from pathlib import Path

from tools.testbed.testbed_cluster import Testbed

AS_ASKED = ["--account=def-me", "--comment=field=nlp;appl=pytorch"]  # required by one site or another


def submit(testbed: Testbed, folder: Path, script: str, *options: str, user: str | None = None) -> str:
    """Write and submit a batch script. Return the job id. Output goes to out-<job id>."""
    path = folder / "job.sh"
    path.write_text("#!/bin/bash\n" + script)
    words = ["sbatch", "--parsable", "--output=out-%j", "--open-mode=append", *options, str(path)]
    done = testbed.run(words, cwd=folder, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(done: Callable[[], bool], what: str, timeout: float = 40) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, f"{what} did not happen in {timeout} s"
        time.sleep(0.05)

"""Helpers for tests of the testbed."""

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

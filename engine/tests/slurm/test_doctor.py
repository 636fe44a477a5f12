"""The doctor on a real Slurm: a job over two nodes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testbed.testbed_cluster import Testbed
from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


@pytest.mark.slow
def test_two_nodes_answer(testbed: Testbed, shared_dir: Path) -> None:
    words = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "trainer.accelerator=cpu")
    done = subprocess.run(
        [sys.executable, "-m", "train_anywhere", "doctor", *words, f"paths.results={shared_dir}"],
        cwd=ROOT,
        env={**os.environ, **testbed.env(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 of 2 ranks answered, on (node\d), (?!\1)node\d$", done.stdout, re.MULTILINE)

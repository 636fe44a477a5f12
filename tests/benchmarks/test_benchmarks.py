"""The benchmarks run, and end with one JSON object; what they find is for people to judge, not for a test."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import SUITES
from src.files import ROOT


def test_every_benchmark_is_in_the_list() -> None:
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__main__"} <= {*SUITES}


@pytest.mark.slow
def test_a_quick_run_ends_with_json() -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "scale"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["machine"]["cores"] >= 1 and found["scale"]["found"]

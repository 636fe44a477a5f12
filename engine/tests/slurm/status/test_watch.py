"""Runs that are watched to their end."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.runs.facts import RecordedProgress
from train_anywhere.slurm.status.gather import Report, RunReports
from train_anywhere.slurm.status.show_logs import watch
from train_anywhere.slurm.status.text_page import page

STATES = ["pending", "running", "running", "completed"]


def story() -> list[RunReports]:
    """Pending, at step 1, at step 1 still, then completed."""
    steps = [None, 1, 1, 2]
    reports = [
        Report("a", Path("/a"), state=s, progress=RecordedProgress(step=n))
        for s, n in zip(STATES, steps, strict=True)
    ]
    return [RunReports([report]) for report in reports]


def test_lines_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = iter(story())
    last = watch(lambda: next(told), lambda gathered: page(gathered.reports[0]), every=0.0)
    assert last.reports[0].state == "completed"
    lines = ["a  pending  ", "a  running    epoch ?, step 1", "a  completed    epoch ?, step 2"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_terminal_is_drawn_over() -> None:
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'engine')!r}]; from engine.tests.slurm.status.test_watch import *\n"
        "told = iter(story()); watch(lambda: next(told), lambda g: page(g.reports[0]), every=0.0)"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-c", script], stdout=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    assert done.returncode == 0
    assert all(state in shown for state in STATES)
    assert "\x1b[" in shown  # moves the cursor up

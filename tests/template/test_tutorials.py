"""The tutorials as a reader types them: files are written, commands run in order, in one copy of the project."""

import os
import re
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.testing.projects import copy_project, run_command

BLOCK = re.compile(r"(?:[Ww]rite `(?P<file>[\w./]+)`:\n\n)?```(?P<kind>bash|python)\n(?P<text>.*?)```", re.S)


@pytest.mark.slow
@pytest.mark.git
@pytest.mark.parametrize("page", ["first-model", "fine-tune"])
def test_each_command_works_in_its_turn(tmp_path: Path, page: str) -> None:
    project = copy_project(tmp_path)
    printed = ""
    for block in BLOCK.finditer((ROOT / "docs/tutorials" / f"{page}.md").read_text()):
        if block["file"]:
            (project / block["file"]).write_text(block["text"])
            continue
        assert block["kind"] == "bash", block["text"]
        runs = sorted(path.name for path in project.glob("results/*/2*-*"))
        commands = block["text"].replace("diff RUN RUN", "diff " + " ".join(runs[-2:]))
        path = f"{sys.prefix}/bin:{os.environ['PATH']}"
        done = run_command(project, "env", f"PATH={path}", "OMP_NUM_THREADS=1", "bash", "-ec", commands)
        assert done.returncode == 0, (commands, done.stdout, done.stderr)
        printed += done.stdout + done.stderr
    expected = {"first-model": "[0, 1, 2, 3, 4]", "fine-tune": "init: 12 of 14 weights are those of"}
    assert expected[page] in printed

"""The tutorials run as a reader types them, in one copy of the project."""

import os
import re
import sys
from pathlib import Path

import pytest

from tools.testbed.testbed_cluster import Testbed
from tools.testing.processes import wait_until
from tools.testing.projects import copy_project, run_command
from train_anywhere.files import ROOT

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


STATUS_AFTER = {
    "python src/train.py": "Checkpoint: ",
    "python slurm/testbed.py kill": "resumed 1 time",
    "python src/jobs.py cancel": "  cancelled  ",
}
"""What the status shows some time after a command: its reader continues then."""


@pytest.mark.slow
@pytest.mark.git
@pytest.mark.slurm
def test_the_first_cluster_job_survives_a_node(tmp_path: Path) -> None:
    page = (ROOT / "docs/tutorials/first-cluster-job.md").read_text()
    steps = page[page.index("## Look") : page.index("## On your cluster")]
    with Testbed(tmp_path / "testbed", share=[tmp_path]) as testbed:
        environ = testbed.env()
        names = [f"PATH={sys.prefix}/bin:{environ['PATH']}", "OMP_NUM_THREADS=1"]
        project = copy_project(tmp_path)

        def type_in(command: str) -> str:
            words = command + (f" --dir {testbed.dir}" if "testbed.py" in command else "")
            if command.endswith("-f"):
                words = f"timeout --signal=INT --preserve-status 8 {words}"  # Ctrl-C
            done = run_command(project, "env", *names, "bash", "-ec", words)
            assert done.returncode in (0, 130), (words, done.stdout, done.stderr)
            return done.stdout

        printed: dict[str, str] = {}
        for block in BLOCK.finditer(steps):
            for command in block["text"].replace("make slurm-down\n", "").splitlines():
                printed[command] = type_in(command)
                text = next((text for start, text in STATUS_AFTER.items() if command.startswith(start)), "")
                if text and "dry_run" not in command:
                    wait_until(lambda text=text: text in type_in("python src/jobs.py status"))  # type: ignore[misc]
    [run] = (project / "results/digits").glob("2*-*")
    assert run.name in printed["python src/jobs.py status"]
    assert "ok  job               2 of 2 ranks answered" in printed[command]

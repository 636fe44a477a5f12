"""The doctor: its findings, its advice, and a real job of two steps."""

import json
import subprocess
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.commands.doctor import check_run
from train_anywhere.runs.folder import RunDir


def doctor(*words: str, timeout: float = 200) -> "subprocess.CompletedProcess[str]":
    return run_python("-m", "train_anywhere", "doctor", *words, timeout=timeout)


@pytest.mark.slow
def test_this_machine_with_two_ranks(tmp_path: Path) -> None:
    done = doctor("strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 ranks answered" in done.stdout
    assert "!!" not in done.stdout


@pytest.mark.new_process
def test_what_the_site_rejects_is_told_and_nothing_is_submitted(tmp_path: Path) -> None:
    done = doctor("cluster=alvis", "trainer.nodes=2", f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 1
    assert "!!  request           alvis rejects jobs without account" in done.stdout
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "state, reports, says",
    [
        ("completed", [{}], "ranks [1] did not start"),
        ("failed", [{}, {}], "the job is failed"),
        ("completed", [{"weights": "aa"}, {"weights": "bb"}], "with different weights"),
        ("completed", [{"weights": "aa"}, {"weights": "aa"}], ""),
        ("completed", [{}, {}], ""),  # fsdp: no rank has all weights
    ],
)
def test_judged(state: str, reports: list[dict[str, str]], says: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"format": 2, "world_size": 2, "state": state, "hosts": ["a"]})
    )
    (tmp_path / "ranks").mkdir()
    for rank, report in enumerate(reports):
        (tmp_path / "ranks" / f"{rank}.json").write_text(json.dumps(report))
    found = check_run(RunDir(tmp_path), "the log")
    assert says in found.remedy and bool(says) == bool(found.remedy)

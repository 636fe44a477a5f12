"""The reason why jobs wait. PBS is a script that prints examples of its manual.

A real Slurm is asked in engine/tests/slurm/test_submit.py.
"""

from pathlib import Path

import pytest

from train_anywhere.slurm.status.job_end import PendingJob, query_pending

QSTAT = """Job Id: 7.server
    Job_Name = digits
    job_state = Q
    comment = Not Running: Insufficient amount of resource: ngpus (R: 4 A: 0 T:
\t 16)
    estimated.start_time = Sun Nov 22 23:00:00 2026
"""


def client(folder: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "said").write_text(says)
    (folder / name).write_text(f"#!/bin/sh\ncat {folder}/said\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        "7|Resources|2026-11-22T23:00:00\n8_0|(null)|N/A\n8_1|ReqNodeNotAvail, May be reserved|N/A\nnoise\n"
    )
    client(tmp_path, "squeue", rows, monkeypatch)
    assert query_pending("slurm", ["7", "8_0", "8_1"]) == {
        "7": PendingJob("Resources", "2026-11-22T23:00:00"),
        "8_0": PendingJob(),
        "8_1": PendingJob("ReqNodeNotAvail, May be reserved"),
    }


def test_qstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path, "qstat", QSTAT, monkeypatch)
    why = "Not Running: Insufficient amount of resource: ngpus (R: 4 A: 0 T: 16)"
    assert query_pending("pbs", ["7.server"]) == {"7.server": PendingJob(why, "Sun Nov 22 23:00:00 2026")}
    client(tmp_path, "qstat", QSTAT.replace("= Q", "= R"), monkeypatch)
    assert query_pending("pbs", ["7.server"]) == {}


def test_no_answer_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert query_pending("slurm", ["7"]) == {}
    assert query_pending("slurm", []) == {}

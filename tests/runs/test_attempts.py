"""What run.json tells of a run's parts."""

import time
from pathlib import Path

import pytest

from src.runs import lock
from src.runs.attempts import begin, count_step, counted_step, end, logged_step, resumed, told
from src.runs.folder import RunDir, create
from src.training.metrics_csv import CsvLog


def part(run: RunDir, from_step: int, to_step: int, ended_by: str | None) -> None:
    begin(run, "7", ["node1"])
    resumed(run, from_step)
    log = CsvLog(run.metrics_csv)
    log.resume(from_step)
    for step in range(from_step + 1, to_step + 1):
        log.write(step, 1, {"train/loss": 1.0})
    if ended_by:
        end(run, ended_by, to_step)


def test_a_run_that_was_never_resumed_tells_nothing(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    part(run, 0, 5, "completed")
    assert told(run.info()) == ""
    assert run.info()["parts"][0]["ended_by"] == "completed"


def test_a_stop_loses_nothing_and_a_kill_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    part(run, 0, 5, "USR1")
    part(run, 5, 12, None)
    assert told(run.info()) == "resumed 1 time, 0 steps lost"
    part(run, 9, 20, "completed")
    info = run.info()
    assert told(info) == "resumed 2 times, 3 steps lost"
    assert [p["ended_by"] for p in info["parts"]] == ["USR1", "killed", "completed"]
    assert [p["from_step"] for p in info["parts"]] == [0, 5, 9]
    assert info["parts"][1]["hosts"] == ["node1"]


def test_steps_that_were_not_logged_are_lost_too(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    part(run, 0, 5, None)
    count_step(run, 17)
    part(run, 3, 4, None)
    assert told(run.info()) == "resumed 1 time, 14 steps lost"
    part(run, 4, 6, None)  # killed before the next heartbeat: the count of the part before is not its own
    assert run.info()["parts"][1]["step"] == 4


def test_the_heartbeat_counts_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.02)
    run = create(tmp_path, "a")
    with lock.RunLock(run):
        assert counted_step(run) == 0
        run.steps_done = lambda: 41
        deadline = time.monotonic() + 10
        while counted_step(run) != 41 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert counted_step(run) == 41
        run.steps_done = lambda: 43
    assert counted_step(run) == 43


def test_the_last_logged_step(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    assert logged_step(run) == 0
    run.metrics_csv.write_text("step,epoch\n3,1\n7,1\n1")
    assert logged_step(run) == 7

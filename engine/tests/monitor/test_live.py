"""live.json is written by its real thread onto real disks. Only the training is a stand-in."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import wait_until
from train_anywhere.monitor import live as module
from train_anywhere.monitor.live import PROFILE, SAVE, SAVED, Live, Requests, read_id, withdraw, write


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds would make the tests as long."""
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    monkeypatch.setattr(module, "REST_FACTOR", 1)


def read(run: Path) -> dict[str, Any]:
    """A reader never meets a half-written file. Before the first one there is none."""
    path = run / "monitor" / "live.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_it_follows_the_training_to_its_end(tmp_path: Path, quick: None) -> None:
    state = {"step": 1}
    live = Live(tmp_path, lambda: dict(state), time.monotonic, {"SLURM_JOB_ID": "7"})
    live.start()
    wait_until(lambda: read(tmp_path).get("step") == 1)
    assert read(tmp_path)["attempt"] == "7"
    assert abs(read(tmp_path)["time"] - time.time()) < 60
    for step in range(2, 30):
        state["step"] = step
        wait_until(lambda: read(tmp_path)["step"] == state["step"])
    state["step"] = 30
    live.close()  # at once, not when it is due
    assert read(tmp_path)["step"] == 30
    assert [p.name for p in (tmp_path / "monitor").iterdir()] == ["live.json"]


def test_what_does_not_move_is_not_written_again(tmp_path: Path, quick: None) -> None:
    """The time is when the training moved last, so a training that hangs is seen to."""
    moved, looks = time.monotonic() - 100, []
    live = Live(tmp_path, lambda: looks.append(1) or {"step": 1}, lambda: moved, {})
    live.start()
    wait_until(lambda: bool(read(tmp_path)))
    before = (tmp_path / "monitor" / "live.json").stat().st_mtime_ns
    assert read(tmp_path)["time"] == pytest.approx(time.time() - (time.monotonic() - moved), abs=10)
    assert read(tmp_path)["attempt"] is None
    seen = len(looks)
    wait_until(lambda: len(looks) > seen + 3)
    live.close()
    assert (tmp_path / "monitor" / "live.json").stat().st_mtime_ns == before


def test_a_full_disk_is_done_without_until_there_is_room(small_disk, quick, capfd):
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    state = {"step": 1, "long": "x" * 10_000}
    live = Live(small_disk, lambda: dict(state), time.monotonic, {})
    live.start()
    time.sleep(0.3)
    assert read(small_disk) == {}
    filler.unlink()
    wait_until(lambda: read(small_disk).get("step") == 1)
    live.close()
    assert os.listdir(small_disk / "monitor") == ["live.json"]
    assert capfd.readouterr() == ("", "")


def test_a_slow_disk_takes_a_thousandth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 50 ms a file, the disk is written to after the longest rest, and at the end."""
    writes = []

    def slow(path: Path, content: object) -> None:
        time.sleep(0.05)
        writes.append(content)

    monkeypatch.setattr(module, "write", slow)
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    steps = iter(range(1000))
    live = Live(tmp_path, lambda: {"step": next(steps)}, time.monotonic, {})
    live.start()
    wait_until(lambda: bool(writes))
    time.sleep(0.3)
    assert len(writes) == 1
    live.close()
    assert len(writes) == 2


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, written = threading.Event(), threading.Event()
    monkeypatch.setattr(module, "write", lambda *_: answers.wait() and written.set())
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    live = Live(tmp_path, lambda: {"step": 1}, time.monotonic, {})
    live.start()
    live.close()
    assert not written.is_set()
    answers.set()


def test_a_checkpoint_is_requested_once(tmp_path: Path) -> None:
    asked = Requests(tmp_path)
    write(tmp_path / "monitor" / SAVE, {"id": (sent := "an id")})
    asked.poll()
    assert asked.save == sent
    asked.saved(3)
    asked.poll()
    assert asked.save == "" and read_id(tmp_path / "monitor" / SAVED) == sent
    again = Requests(tmp_path)  # resumed
    again.poll()
    assert again.save == ""


def test_a_profile_is_requested_once(tmp_path: Path) -> None:
    write(tmp_path / "monitor" / PROFILE, {"number": 5, "ranks": [1], "steps": 2})
    asked = Requests(tmp_path)
    asked.poll()
    assert asked.profile == 5
    asked.profile = 0
    asked.poll()
    assert asked.profile == 0
    content = {"number": 5, "rank": 1, "steps": [1, 2], "operations": []}
    write(tmp_path / "profile" / "rank-1.json", content)
    again = Requests(tmp_path)  # resumed
    again.poll()
    assert again.profile == 0


def test_a_command_withdraws_only_its_own_request(tmp_path: Path) -> None:
    first, second = ({"number": n, "ranks": [0], "steps": 2} for n in (1, 2))
    write(tmp_path / PROFILE, first)
    write(tmp_path / PROFILE, second)
    withdraw(tmp_path / PROFILE, first)
    assert '"number": 2' in (tmp_path / PROFILE).read_text()
    withdraw(tmp_path / PROFILE, second)
    assert "number" not in (tmp_path / PROFILE).read_text()

"""Requests of `jobs.py` to a run, including those left by a dead run or killed command."""

from pathlib import Path

from train_anywhere.monitor.live import PROFILE, SAVE, SAVED, Requests, read_id, send, withdraw, write


def test_a_checkpoint_is_requested_once(tmp_path: Path) -> None:
    asked = Requests(tmp_path)
    sent = send(tmp_path / "monitor" / SAVE)
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

"""Run folders: unique, found again, run.json never half-written."""

import json
import threading
from pathlib import Path

import pytest

from src.errors import CheckpointError
from src.removal import MARKER
from src.rundir import create, open_run


def test_many_at_once_get_different_folders(tmp_path: Path) -> None:
    made = []
    threads = [threading.Thread(target=lambda: made.append(create(tmp_path, "a").path)) for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(made)) == 40
    assert (tmp_path / "latest").resolve() in made


def test_run_json_merges_and_is_always_whole(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    assert run.info() == {}
    run.update(state="queued", step=0)
    done = threading.Event()
    torn = []

    def read() -> None:
        while not done.is_set():
            try:
                json.loads(run.info_file.read_text())
            except ValueError:
                torn.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(200):
        run.update(step=step, filler="x" * 20000)
    done.set()
    reader.join()
    assert not torn
    assert run.info()["state"] == "queued"
    assert run.info()["step"] == 199
    assert sorted(p.name for p in run.path.iterdir()) == [MARKER, "run.json"]


def test_no_run_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no run folder \(it has no config.yaml\); name one like"):
        open_run(tmp_path)


def test_latest_opens_the_newest(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    run.config.write_text("name: a\n")
    assert open_run(tmp_path / "latest").path == run.path

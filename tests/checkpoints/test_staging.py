"""A node's own disk: which one it is, what is trusted there, and that it is this user's."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from src.checkpoints.retention import Retention
from src.checkpoints.staging import Stage, make_stage, names_of, read_record, write_record
from src.files.marked import MARKER
from src.runs.folder import RunDir

FACTS: dict[str, Any] = {"epoch": 0, "batch": 0, "metrics": {}, "value": None, "framework": "lightning"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


@pytest.fixture
def stage(run: RunDir, tmp_path: Path) -> Stage:
    return Stage((tmp_path / "node").joinpath(*names_of(run)))


def write(folder: Path) -> None:
    (folder / "model.ckpt").write_text("weights")


def test_what_is_complete_comes_by_step(stage: Stage) -> None:
    assert stage.complete() == []
    for step in (20, 3, 100_000_000):
        stage.write(write, {"step": step, **FACTS})
    assert [saved.step for saved in stage.complete()] == [3, 20, 100_000_000]
    stage.drop(stage.complete()[0].path)
    stage.clear()
    assert not stage.folder.exists()


def test_nothing_is_left_of_a_write_that_failed(stage: Stage) -> None:
    def fails(folder: Path) -> None:
        write(folder)
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        stage.write(fails, {"step": 1, **FACTS})
    assert [p.name for p in stage.folder.iterdir()] == [MARKER]


def test_a_cut_file_is_not_complete(stage: Stage) -> None:
    path = stage.write(write, {"step": 1, **FACTS})
    (path / "model.ckpt").write_text("weigh")
    assert stage.complete() == []


def test_from_before_the_last_start_of_the_machine_is_not_trusted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("src.checkpoints.staging.boot", lambda: "earlier")
        stage.write(write, {"step": 5, **FACTS})
    assert stage.complete() == []


def test_only_on_another_disk_than_the_run_folder(run: RunDir, tmp_path: Path, require: Any) -> None:
    here, memory = str(tmp_path), "/dev/shm"
    other = os.path.isdir(memory) and os.stat(memory).st_dev != os.stat(here).st_dev
    require(other, "needs two disks: TMPDIR and /dev/shm")
    assert make_stage(run, "auto", {"TRAIN_LOCAL_DISK": here}) is None
    assert make_stage(run, None, {"TRAIN_LOCAL_DISK": memory}) is None
    found = make_stage(run, "auto", {"TRAIN_LOCAL_DISK": "/nowhere", "SLURM_TMPDIR": memory})
    assert found is not None and found.folder == Path(memory, f"{tmp_path.name}-{os.getuid()}", "run")
    asked = make_stage(run, here, {"SLURM_TMPDIR": memory})
    assert asked is not None and asked.folder.is_relative_to(here)


def test_only_for_this_user(stage: Stage) -> None:
    stage.write(write, {"step": 1, **FACTS})
    assert stage.folder.stat().st_mode & 0o077 == 0


@pytest.mark.needs_root
def test_a_folder_of_another_user_is_not_used(stage: Stage, require: Any) -> None:
    require(os.getuid() == 0, "run as root: the test gives a folder to another user")
    stage.write(write, {"step": 1, **FACTS})
    os.chown(stage.folder, 12345, 12345)
    assert stage.complete() == []
    with pytest.raises(PermissionError, match="belongs to another user"):
        stage.write(write, {"step": 2, **FACTS})


def test_the_record_is_for_its_own_host(run: RunDir, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_record(run) is None
    rule = Retention("min", 3, 10)
    write_record(run, stage, rule)
    found = read_record(run)
    assert found is not None and (found[0].folder, found[1]) == (stage.folder, rule)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert read_record(run) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"folder": "/etc"},
        {"folder": "digits-0/run"},
        {"folder": 7},
        {"folder": "{node}/../{names}"},
        {"folder": "{elsewhere}/{names}"},
        {"rule": {"mode": "max", "keep_last": 0, "keep_every_n_epochs": None}},
        {"rule": {"mode": "max", "keep_last": True, "keep_every_n_epochs": None}},
        {"rule": {"mode": "best", "keep_last": 1, "keep_every_n_epochs": None}},
        {"rule": {"mode": "max", "keep_last": 1, "keep_every_n_epochs": 1e9}},
        {"rule": {"mode": "max", "keep_last": 1}},
        {"rule": None},
    ],
)
def test_a_record_that_this_run_did_not_write_is_ignored(
    run: RunDir, stage: Stage, tmp_path: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stage.write(write, {"step": 1, **FACTS})
    write_record(run, stage, Retention("max", 1))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.joinpath(*names_of(run)).mkdir(parents=True)  # named as this run's, and it has not made it
    (elsewhere.joinpath(*names_of(run)) / "thesis.tex").touch()
    record = run.checkpoints / "stage.json"
    places = {"node": tmp_path / "node", "elsewhere": elsewhere, "names": "/".join(names_of(run))}
    changed = {k: v.format(**places) if isinstance(v, str) else v for k, v in changed.items()}
    record.write_text(json.dumps({**json.loads(record.read_text()), **changed}))
    assert read_record(run) is None
    said = capsys.readouterr().err
    assert (
        said.startswith(f"{record} is ignored, and nothing that it names is touched: ")
        and said.count("\n") == 1
    )


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"host": 3}'])
def test_a_damaged_record_is_ignored(run: RunDir, text: str) -> None:
    run.checkpoints.mkdir()
    (run.checkpoints / "stage.json").write_text(text)
    assert read_record(run) is None


def test_a_link_in_its_place_is_not_used(run: RunDir, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / run.id
    mine.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / names_of(run)[0]).symlink_to(tmp_path / "mine")
    stage = Stage((tmp_path / "node").joinpath(*names_of(run)))
    assert not stage.owned() and "is a symbolic link" in str(stage.problem())
    with pytest.raises(PermissionError, match="is a symbolic link"):
        stage.write(write, {"step": 1, **FACTS})
    stage.clear()
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]


def test_what_can_not_be_removed_is_published_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stage.write(write, {"step": 1, **FACTS})
    (path / MARKER).write_text("of something else")
    stage.drop(path)
    assert path.is_dir() and stage.complete() == []

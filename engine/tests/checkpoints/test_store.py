"""Checkpoints are complete or absent. Damaged ones are skipped, newest and best stay."""

import json
import re
import shutil
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, SavedCheckpoint, find_damage
from train_anywhere.checkpoints.store import CheckpointStore, Retention
from train_anywhere.errors import CheckpointError
from train_anywhere.files.removal import make_empty


def save(
    store: CheckpointStore, step: int, value: float | None = None, text: str = "weights"
) -> SavedCheckpoint:
    info = CheckpointInfo(step, 0, step, {"val/acc": value or 0.0}, value, "mine")
    return store.write(lambda folder: (folder / "model.ckpt").write_text(f"{text} {step}") and None, info)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", Retention("max", keep_last=2))


def names(store: CheckpointStore) -> list[str]:
    return sorted(p.name for p in store.folder.iterdir())


def test_newest_and_best(store: CheckpointStore) -> None:
    for step, value in [(1, 0.5), (2, 0.9), (3, 0.7), (4, 0.8), (5, None)]:
        save(store, step, value)
    assert names(store) == ["00000002", "00000004", "00000005", "best", "newest"]
    newest, best = store.newest_good(), store.best()
    assert newest is not None and (newest.step, newest.batch) == (5, 5)
    assert best is not None and best.value == 0.9
    assert (store.folder / "newest").read_text().strip() == "00000005"
    assert (store.folder / "best").read_text().strip() == "00000002"


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_one_is_passed_over(
    store: CheckpointStore, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, 1)
    path = save(store, 2).path
    file = path / "model.ckpt"
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[3] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "remove":
        file.unlink()
    else:
        (path / "manifest.json").write_text("{")
    good = store.newest_good()
    assert good is not None and good.step == 1
    assert "00000002 is damaged" in capsys.readouterr().err


def test_nothing_there(store: CheckpointStore) -> None:
    assert store.newest_good() is None
    assert store.best() is None


def test_a_half_written_one_is_not_a_checkpoint_and_is_removed(store: CheckpointStore) -> None:
    make_empty(half := store._place(".00000007.1"))
    (half.path / "model.ckpt").write_text("half")
    assert store.newest_good() is None
    save(store, 8)
    assert names(store) == ["00000008", "newest"]


def test_written_again(store: CheckpointStore) -> None:
    save(store, 3, text="old")
    again = save(store, 3, text="new")
    assert (again.path / "model.ckpt").read_text() == "new 3"
    assert names(store) == ["00000003", "newest"]


def test_a_damaged_one_that_seems_newer_does_not_take_the_place_of_the_next(tmp_path: Path) -> None:
    before, store = (CheckpointStore(tmp_path, Retention("max", keep_last=1)) for _ in range(2))
    (save(before, 9).path / "model.ckpt").write_text("x")
    for step in (5, 6):  # whoever writes them does not know of the damage
        save(before, step)
        newest = store.newest_good()
        assert newest is not None and newest.step == step
    save(store, 7)
    assert names(store) == ["00000007", "00000009.damaged-1", "newest"]


def test_a_kill_before_the_rename_loses_nothing(store: CheckpointStore) -> None:
    path = save(store, 3, text="old").path
    path.rename(path.with_name(".00000003.17"))
    newest = store.newest_good()
    assert newest is not None and newest.path.name == ".00000003.17"
    save(store, 3, text="new")
    assert names(store) == ["00000003", "newest"]


def test_published_from_another_disk(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "disk", Retention("max", keep_last=1))
    source = save(other, 4, 0.5)
    saved = store.publish(source.path)
    assert (saved.step, saved.value) == (4, 0.5) and find_damage(saved.path) is None
    assert (saved.path / "model.ckpt").read_text() == "weights 4"


def test_a_failed_publication_leaves_what_was_there(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, 1)
    source = save(CheckpointStore(tmp_path / "disk", Retention("max", keep_last=1)), 4)
    (source.path / "model.ckpt").write_text("cut")
    with pytest.raises(OSError, match="instead of"):
        store.publish(source.path)
    assert names(store) == ["00000001", "newest"]


def test_a_manifest_of_a_later_version_with_more_fields_is_read(store: CheckpointStore) -> None:
    path = save(store, 1).path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "colour": "blue"}))
    newest = store.newest_good()
    assert newest is not None and newest.step == 1


def test_a_file_between_the_checkpoints_is_left_alone(store: CheckpointStore) -> None:
    save(store, 1)
    (store.folder / "notes.txt").write_text("mine")
    shutil.copytree(store.folder / "00000001", store.folder / "my-copy")
    save(store, 2)
    assert {"notes.txt", "my-copy"} <= set(names(store))


def test_what_the_user_keeps_between_the_checkpoints_stays(store: CheckpointStore) -> None:
    save(store, 1)
    first = store.folder / "00000001"
    mine = ["00000001-mine", "00000001.old", "best-backup", "20240101", "1", ".00000001.backup", "00000009"]
    for name in mine:
        shutil.copytree(first, store.folder / name)
    (store.folder / "20240101" / "manifest.json").unlink()  # a folder that is called by its date
    (store.folder / "00000007").symlink_to(first)
    for step in (10, 11, 12, 13):
        save(store, step)
    assert {*mine, "00000007"} <= set(names(store)) and not first.exists()


def test_a_damaged_one_is_kept_aside_also_when_its_step_is_written_again(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        path = save(store, 3, text="old").path
        (path / "model.ckpt").write_text("x")
        with pytest.raises(CheckpointError, match=r"00000003: model\.ckpt"):
            store.newest_good()
    save(store, 3, text="new")
    assert names(store) == ["00000003", "00000003.damaged-1", "00000003.damaged-2", "newest"]
    newest = store.newest_good()
    assert newest is not None and (newest.path / "model.ckpt").read_text() == "new 3"
    kept = store.folder / "00000003.damaged-1"
    assert re.search(rf"checkpoint {path} \(.*\) is kept as {kept}", capsys.readouterr().err)


def test_a_checkpoint_of_another_version_is_not_read(store: CheckpointStore) -> None:
    manifest = save(store, 1).path / "manifest.json"
    for line in ('"format": 2,', ""), ('"format": 2,', '"format": 3,'):
        text = manifest.read_text()
        manifest.write_text(text.replace(*line))
        assert manifest.read_text() != text and store.all() == []
        with pytest.raises(
            CheckpointError, match=r"another version of this project wrote it: format (None|3), not 2"
        ):
            store.newest_good()
        manifest.write_text(text)


def test_nothing_is_written_or_removed_through_a_link(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "other" / "checkpoints", Retention("max", keep_last=1))
    save(other, 1)
    store.folder.symlink_to(other.folder)
    with pytest.raises(PermissionError, match="is a symbolic link"):
        save(store, 2)
    store.remove(store.folder / "00000001")
    assert names(other) == ["00000001", "newest"]


@pytest.mark.parametrize(
    "changed",
    [{"step": "7"}, {"step": 8}, {"step": -1}, {"epoch": None}, {"metrics": 3}, {"metrics": {"a": "b"}}, {"value": "x"},
     {"files": {"../../other": {"size": 1}}}, {"files": {"/etc/passwd": {"size": 1}}}, {"files": {"a": 3}}],
)  # fmt: skip
def test_a_manifest_with_values_that_no_checkpoint_has_is_damaged(
    store: CheckpointStore, changed: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = save(store, 7).path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))
    with pytest.raises(CheckpointError, match="1 is damaged: 00000007"):
        store.newest_good()

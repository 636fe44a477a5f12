"""Checkpoints are complete or absent; a damaged one is passed over; the newest and the best stay."""

from pathlib import Path

import pytest

from src.checkpoint_store import CheckpointStore, Saved


def save(store: CheckpointStore, step: int, value: float | None = None, text: str = "weights") -> Saved:
    temporary = store.begin(step)
    (temporary / "model.ckpt").write_text(f"{text} {step}")
    facts = {
        "epoch": 0,
        "batch": step,
        "metrics": {"val/acc": value or 0.0},
        "value": value,
        "framework": "lightning",
    }
    return store.commit(temporary, step=step, **facts)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", "max", keep_last=2)


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


def test_smallest_is_best_with_mode_min(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "min", keep_last=1)
    for step, value in [(1, 0.5), (2, 0.1), (3, 0.7)]:
        save(store, step, value)
    best = store.best()
    assert best is not None and best.step == 2


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
    (store.begin(7) / "model.ckpt").write_text("half")
    assert store.newest_good() is None
    save(store, 8)
    assert names(store) == ["00000008", "newest"]


def test_written_again(store: CheckpointStore) -> None:
    save(store, 3, text="old")
    again = save(store, 3, text="new")
    assert (again.path / "model.ckpt").read_text() == "new 3"
    assert names(store) == ["00000003", "newest"]

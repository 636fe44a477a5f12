"""TensorBoard's curves as TensorBoard itself reads them."""

from pathlib import Path

from src.mirror import Mirror


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_resumed_run_has_one_curve(tmp_path: Path) -> None:
    from src.keras_side.report import TensorBoard

    first = TensorBoard(Mirror(None, tmp_path), 0)
    for step in (10, 20, 30):
        first.write(step, {"train/loss": step / 8, "lr": 0.5})
    resumed = TensorBoard(
        Mirror(None, tmp_path), 20
    )  # killed after step 30, the newest checkpoint is of step 20
    for step in (30, 40):
        resumed.write(step, {"train/loss": step / 4})
    assert curve(tmp_path, "train/loss") == [(10, 1.25), (20, 2.5), (30, 7.5), (40, 10)]
    assert curve(tmp_path, "lr") == [(10, 0.5), (20, 0.5)]

"""`from_scratch=true` keeps what a run had trained."""

from collections.abc import Callable
from pathlib import Path

from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import move_aside, move_back

MakeRun = Callable[..., tuple[Config, RunDir]]


def with_checkpoint(run: RunDir, step: int) -> None:
    (run.checkpoints / f"{step:08d}").mkdir(parents=True)
    (run.checkpoints / f"{step:08d}" / "weights").write_text(f"of step {step}")


def everything(run: RunDir) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}


def test_what_was_trained_is_kept_and_can_be_put_back(make_run: MakeRun) -> None:
    _, run = make_run()
    assert move_aside(run) is None
    with_checkpoint(run, 3)
    run.metrics_csv.write_text("step\n3\n")
    before = everything(run)
    kept = move_aside(run)
    assert kept == run.path / "before-1"
    assert sorted(p.name for p in kept.iterdir()) == [".run-marker", "checkpoints", "metrics.csv"]
    assert not run.checkpoints.exists()
    move_back(run, kept)
    assert everything(run) == before
    assert not kept.exists()
    move_aside(run)
    with_checkpoint(run, 5)
    assert move_aside(run) == run.path / "before-2"

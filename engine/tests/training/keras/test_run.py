"""Training on this machine: it learns, it stops when asked to, and it resumes bit for bit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.job.rank_process import Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import open_run

from .test_dropin import bits, rows, run_keras

SMALL = (
    "framework=keras", "monitor.progress=none", "trainer.max_epochs=4", "trainer.limit_train_batches=6", "trainer.log_every_n_steps=5",
    "data.batch_size=32",
)  # fmt: skip
EVERYTHING = (
    "model.width=4", "model.dropout=0.3", "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=1.0",
    "trainer.early_stopping.patience=3", "checkpoint.every_n_steps=2",
)  # fmt: skip


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    first, second = (
        {k: v for k, v in bits(outcome).items() if k.startswith(("weights/", "optimizer/"))}
        for outcome in (one, other)
    )
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Stop]:
    """`signal_at("on_train_batch_end", 5)`: a real SIGUSR1 comes just before that call number 5."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}

    def prepare(event: str, count: int) -> Stop:
        from train_anywhere.training.keras.loop.callbacks import TrainingCallback

        original, calls = getattr(TrainingCallback, event), 0

        def wrapped(self: object, *arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGUSR1)
            original(self, *arguments)

        monkeypatch.setattr(TrainingCallback, event, wrapped)
        return Stop().install()

    yield prepare
    for number, handler in before.items():
        signal.signal(number, handler)


BATCH, TEST_BATCH, WITHIN = "on_train_batch_end", "on_test_batch_end", "trainer.val_check_interval=2"
XLA = ("model=mlp", "model.dropout=0.5", "trainer.compile=true", "trainer.accumulate_grad_batches=2")
QUICK = {
    "mid-epoch": (EVERYTHING, BATCH, 4, 4, (1, 2)),
    "after": ((*EVERYTHING, WITHIN), TEST_BATCH, 6, 2, (0, 4)),  # right after a validation within an epoch
    "compiled": (XLA, BATCH, 4, 4, (1, 2)),
}
SLOW = {
    "end of epoch": (EVERYTHING, BATCH, 6, 6, (1, 6)),  # before the validation
    "validation": (EVERYTHING, TEST_BATCH, 8, 6, (1, 6)),
    "16-mixed": (("model.width=4", "optimizer=sgd", "trainer.precision=16-mixed"), BATCH, 7, 7, (1, 1)),
    "bf16-mixed": (("model=mlp", "trainer.precision=bf16-mixed", "schedule=step"), BATCH, 20, 20, (3, 2)),
    "within": ((*EVERYTHING, WITHIN), TEST_BATCH, 3, 2, (0, 4)),
}
"""Stops: keys, the hook and the number of its call in which a signal comes, step, epoch and batch of the checkpoint."""


@pytest.mark.parametrize(
    ("overrides", "event", "count", "step", "position"),
    [
        *(pytest.param(*stop, id=name) for name, stop in QUICK.items()),
        *(pytest.param(*stop, id=name, marks=pytest.mark.slow) for name, stop in SLOW.items()),
    ],
)
@pytest.mark.quick("mid-epoch")
def test_a_stopped_run_resumes_bit_for_bit(
    make_run, signal_at, monkeypatch, overrides, event: str, count: int, step: int, position: tuple[int, int]
) -> None:
    config, whole = make_run(*SMALL, *overrides)
    expected = run_keras(config, whole)
    assert expected.state == "completed"

    _, parts = make_run(*SMALL, *overrides)
    with monkeypatch.context():
        stopped = run_keras(config, parts, signal_at(event, count))
    assert stopped.state == "preempted"
    assert stopped.step == step
    from train_anywhere.checkpoints.store import load_manifest

    saved = load_manifest(Path(str(stopped.checkpoint)))
    assert (saved.epoch, saved.batch) == position
    ended = run_keras(config, open_run(parts.path))

    assert (ended.state, ended.epoch, ended.step) == ("completed", expected.epoch, expected.step)
    assert_same_bits(expected, ended)
    for name in ("val/loss", "val/acc", "test/loss", "test/acc"):
        assert ended.metrics[name] == expected.metrics[name]
    steps = [row["step"] for row in rows(whole)]
    assert [row["step"] for row in rows(parts)] == steps
    assert [row["val/loss"] for row in rows(parts)] == [row["val/loss"] for row in rows(whole)]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(make_run) -> None:
    config, one = make_run(*SMALL, "model=resnet18", "trainer.max_epochs=1")
    _, other = make_run(*SMALL, "model=resnet18", "trainer.max_epochs=1")
    assert_same_bits(run_keras(config, one), run_keras(config, other))


@pytest.mark.slow
def test_a_completed_run_is_only_tested_again(make_run) -> None:
    config, run = make_run(*SMALL, "trainer.max_epochs=1")
    first = run_keras(config, run)
    again = run_keras(config, open_run(run.path))
    assert (again.step, again.metrics["test/acc"]) == (first.step, first.metrics["test/acc"])
    assert again.checkpoint == first.checkpoint


@pytest.mark.slow
def test_max_steps_may_end_within_an_epoch_and_be_raised_later(make_run) -> None:
    whole_config, whole = make_run(*SMALL, "schedule=constant", "trainer.max_steps=15")
    expected = run_keras(whole_config, whole)
    config, parts = make_run(*SMALL, "schedule=constant", "trainer.max_steps=8")
    first = run_keras(config, parts)
    assert (first.state, first.epoch, first.step) == ("completed", 1, 8)
    assert [row["step"] for row in rows(parts) if row["val/acc"]] == ["6", "8"]
    longer = run_keras(whole_config, open_run(parts.path))
    assert (longer.state, longer.epoch, longer.step) == ("completed", 2, 15)
    assert_same_bits(expected, longer)


@pytest.mark.slow
def test_early_stopping_ends_the_run_for_good(make_run) -> None:
    never = ("trainer.early_stopping.patience=2", "trainer.early_stopping.min_delta=100")
    config, run = make_run(*SMALL, *never)
    outcome = run_keras(config, run)
    assert (outcome.state, outcome.epoch) == ("completed", 3)
    assert run_keras(config, open_run(run.path)).step == outcome.step


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(make_run) -> None:
    from train_anywhere.errors import CheckpointError

    config, run = make_run(*SMALL, "trainer.max_epochs=1", "model.width=4")
    run_keras(config, run)
    wider, _ = make_run(*SMALL, "trainer.max_epochs=2", "model.width=8")
    with pytest.raises(CheckpointError, match="another model"):
        run_keras(wider, run)
    sgd, _ = make_run(*SMALL, "trainer.max_epochs=2", "model.width=4", "optimizer=sgd")
    with pytest.raises(CheckpointError, match="another optimizer"):
        run_keras(sgd, run)


def test_calls_make_several_steps_unless_a_callback_looks_at_batches(make_run, monkeypatch) -> None:
    """All that is due comes at its step: rows of metrics, checkpoints, validations, the end. A resume within an epoch has the same bits."""
    from train_anywhere.training.keras.loop.callbacks import TrainingCallback

    ends, original = list[int](), TrainingCallback.on_train_batch_end

    def counted(self: TrainingCallback, batch: int, logs: Any = None) -> None:
        ends.append(batch)
        original(self, batch, logs)

    monkeypatch.setattr(TrainingCallback, "on_train_batch_end", counted)
    words = (
        *SMALL, "model=mlp", "model.dropout=0.3", "trainer.limit_train_batches=24", "trainer.max_steps=36", "trainer.log_every_n_steps=4",
        "trainer.val_check_interval=12", "checkpoint.every_n_steps=6", "checkpoint.keep_last=9", "schedule=constant",
    )  # fmt: skip
    found = []
    looks = "+callbacks.a._target_=engine.tests.training.keras.strangers.Reads"
    one = "trainer.extra.steps_per_execution=1"
    for more, calls in (((one,), 36), ((), 18), ((looks,), 36)):
        config, run = make_run(*words, *more)
        found.append((run_keras(config, run), rows(run)))
        assert len(ends) == calls
        ends.clear()
        saved = sorted(int(path.name) for path in run.checkpoints.glob("0*"))
        assert saved == [6, 12, 18, 24, 30, 36]
    config, run = make_run(*words, "trainer.max_steps=18")
    run_keras(config, run)
    ends.clear()
    # 3 divides an epoch, the run and the position
    config, _ = make_run(*words, "trainer.extra.steps_per_execution=5")
    resumed = run_keras(config, open_run(run.path))
    assert len(ends) == 12 and resumed.step == 36
    for outcome in (found[1][0], resumed):
        assert_same_bits(found[0][0], outcome)
    assert found[0][1] == found[1][1] == found[2][1]
    assert [row["step"] for row in found[0][1]] == ["4", "8", "12", "16", "20", "24", "28", "32", "36", "36"]
    assert [row["step"] for row in found[0][1] if row["val/loss"]] == ["12", "24", "36"]

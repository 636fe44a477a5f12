"""The position, step by step."""

from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.keras.checkpoint import Position
from train_anywhere.training.plan import Plan

PLAN = Plan(
    batch_per_rank=8,
    train_batches=6,
    accumulate=2,
    steps_per_epoch=3,
    max_epochs=2,
    total_steps=5,
    val_every=3,
    val_batches=1,
    test_batches=1,
)


def test_walks_through_the_epochs(make_config) -> None:
    trainer = make_config().trainer
    rule = trainer.early_stopping
    position, seen = Position(), []
    while not position.is_complete(PLAN, rule):
        position.advance(PLAN, trainer)
        seen.append((position.step, position.epoch, position.batch, position.pending))
        if position.pending:
            position.close_epoch(PLAN)
    assert seen == [(1, 0, 2, False), (2, 0, 4, False), (3, 0, 6, True), (4, 1, 2, False), (5, 1, 4, True)]
    # cut short by total_steps: a longer run would resume here
    assert (position.epoch, position.batch) == (1, 4)
    at_once = Position()
    at_once.advance(PLAN, trainer, 3)
    assert at_once == Position(batch=6, step=3, pending=True)


def test_a_pending_epoch_is_not_over(make_config) -> None:
    position = Position(epoch=1, batch=4, step=5, pending=True)
    assert not position.is_complete(PLAN, make_config().trainer.early_stopping)


def test_a_run_that_has_stopped_early_is_over_after_its_epoch(make_config) -> None:
    rule = make_config("trainer.early_stopping.patience=2").trainer.early_stopping
    assert not Position(step=1, patience=Patience(0.5, 1)).is_complete(PLAN, rule)
    assert not Position(step=1, patience=Patience(0.5, 2), pending=True).is_complete(PLAN, rule)
    assert Position(step=1, patience=Patience(0.5, 2)).is_complete(PLAN, rule)

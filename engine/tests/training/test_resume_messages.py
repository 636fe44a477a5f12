"""The message of a resumed run."""

from pathlib import Path

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.training.plan import make_plan, resume_message


def test_a_longer_schedule_that_raises_the_learning_rate_again_is_told(make_config) -> None:
    def line(*words: str, lr: float) -> str:
        config = make_config("trainer.max_epochs=9", "optimizer.lr=0.001", *words)
        plan = make_plan(config, 4, 1, 1, 1)
        metrics = {"lr": lr} if lr else {}
        saved = SavedCheckpoint(
            path=Path("x"), step=24, epoch=6, batch=0, metrics=metrics, value=None, framework="one"
        )
        return resume_message(saved, config, plan, 1)

    cosine = ("schedule.warmup_epochs=0", "schedule.final=0")  # half a cosine at step 23 of 36 is 0.289
    plain = "resuming at step 24 of 36"
    assert (
        line(*cosine, lr=1.2e-05)
        == f"{plain}; schedule=cosine now ends there: the learning rate rises from 1.2e-05 to 0.000289"
    )
    assert line(*cosine, lr=0.000289) == line(*cosine, lr=0) == line("schedule=constant", lr=0.001) == plain
    assert line("schedule.warmup_epochs=7", lr=1e-05) == plain  # it rises anyway

"""A complete run that is resumed."""

from collections.abc import Callable
from dataclasses import replace

from train_anywhere.config.schema import Config
from train_anywhere.launch.rank import run_rank
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import completion_message, is_complete

MakeRun = Callable[..., tuple[Config, RunDir]]


def longer(config: Config, **trainer: object) -> Config:
    return replace(config, trainer=replace(config.trainer, **trainer))  # type: ignore[arg-type]


def test_only_more_epochs_or_steps_go_on(make_run: MakeRun) -> None:
    config, run = make_run("trainer.max_epochs=3", "trainer.max_steps=9")
    assert not is_complete(run, config)
    run.update(state="completed")
    assert is_complete(run, config)
    assert is_complete(run, longer(config, max_epochs=2))
    assert not is_complete(run, longer(config, max_epochs=4))
    assert not is_complete(run, longer(config, max_steps=10))
    assert not is_complete(run, longer(config, max_steps=None))


def test_it_says_so_with_the_result(make_run: MakeRun) -> None:
    config, run = make_run()
    run.update(state="completed", metrics={"test/acc": 0.5, "test/loss": None})
    told = completion_message(run, config)
    assert f"{run.path} is complete: nothing is left to train. To train longer: " in told
    assert f"src/train.py resume={run.path} trainer.max_epochs=30" in told
    assert "Test:          test/acc 0.5000   test/loss nan" in told


def test_the_example_exceeds_what_the_run_has_had(make_run: MakeRun) -> None:
    config, run = make_run("trainer.max_epochs=8")
    run.update(state="completed")
    told = completion_message(run, longer(config, max_epochs=3, max_steps=5))
    assert f"resume={run.path} trainer.max_epochs=16\n" in told
    limited, run = make_run("trainer.max_epochs=3", "trainer.max_steps=9")
    run.update(state="completed")
    told = completion_message(run, longer(limited, max_steps=2))
    assert f"resume={run.path} trainer.max_epochs=6 trainer.max_steps=18\n" in told
    assert not is_complete(run, longer(limited, max_epochs=6, max_steps=18))


def test_a_chained_job_after_the_last_step_does_nothing(make_run: MakeRun) -> None:
    _, run = make_run()
    run.update(state="completed")
    before = run.info_file.read_bytes()
    assert run_rank(run) == 0
    assert run.info_file.read_bytes() == before


def test_more_epochs_before_early_stopping_go_on(make_run: MakeRun) -> None:
    config, run = make_run()
    run.update(state="completed")
    assert not is_complete(run, longer(config, min_epochs=4))

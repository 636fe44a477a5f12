"""Changes that a new command with resume=RUN may make, complete runs, and from_scratch=true."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.launch.rank import run_rank
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import (
    completion_message,
    is_complete,
    load_saved_overrides,
    merge_resumed,
    move_aside,
    move_back,
)
from train_anywhere.runs.reopen.trust import remember

Make = Callable[..., tuple[Config, RunDir]]


@pytest.mark.parametrize(
    ("made", "asked", "says"),
    [
        (
            ["model.dropout=0.3"],
            ["model=mlp", "seed=5", "trainer.nodes=2"],
            ["model.name=mlp can't be changed by resume= (the run has cnn)", "seed=5 can't"],
        ),
        (["data=synthetic", "data.classes=3"], ["data=digits"], ["data.name=digits can't"]),
        (["optimizer=sgd", "optimizer.momentum=0.5"], ["optimizer=adamw"], ["optimizer.name=adamw can't"]),
    ],
)
def test_another_choice_is_refused_whatever_the_run_was_made_with(
    make_run: Make, made: Sequence[str], asked: Sequence[str], says: Sequence[str]
) -> None:
    _, run = make_run(*made)
    with pytest.raises(ConfigError) as refused:
        load_saved_overrides([f"resume={run.path}", *asked])
    assert [p[: len(s)] for p, s in zip(refused.value.problems, says, strict=True)] == says


@pytest.mark.parametrize(
    "asked",
    [["model=cnn"], ["optimizer.lr=0.5", "trainer.max_epochs=3"], ["cluster=slurm", "strategy=ddp"], ["-m"]],
)
def test_the_rest_comes_after_what_the_run_was_made_with(make_run: Make, asked: Sequence[str]) -> None:
    _, run = make_run("model.dropout=0.3")
    assert load_saved_overrides([f"resume={run.path}", *asked]) == ["model.dropout=0.3"]
    assert load_saved_overrides(asked) == []


def test_several_choices_of_a_group_are_kept(make_run: Make) -> None:
    _, run = make_run("loggers=[wandb,mlflow]", "callbacks=learning_rate")
    assert load_saved_overrides([f"resume={run.path}"]) == [
        "loggers=[wandb,mlflow]",
        "callbacks=learning_rate",
    ]


def test_a_run_of_an_earlier_commit_whose_keys_became_strings_resumes(make_run: Make) -> None:
    made = to_hydra_overrides(
        ["task._target_=builtins.dict", "task.weights={0: 1.0, 1: 5.0}", "task.names={0: cat}"]
    )
    _, run = make_run(*made)
    tree = yaml.safe_load(run.config.read_text())
    tree["task"] |= {"weights": {"0": 1.0, "1": 5.0}, "names": {"0": "cat"}}
    run.config.write_text(yaml.safe_dump(tree))
    remember(run.path)
    frozen = {
        "name": "custom",
        "_target_": "builtins.dict",
        "monitors": {},
        "weights": {"0": 1.0, "1": 5.0},
        "names": {"0": "cat"},
    }
    same = [*made, f"resume={run.path}"]
    assert merge_resumed(compose(same), run, same)["task"] == frozen
    again = [*same, "++task.weights={0: 1.0, 1: 6.0}"]
    with pytest.raises(ConfigError, match=r"task\.weights=\{0: 1\.0, 1: 6\.0\} can't be changed"):
        merge_resumed(compose(again), run, again)


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

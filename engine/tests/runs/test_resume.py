"""Changes that a new command with `resume=RUN` may make."""

from collections.abc import Callable, Sequence

import pytest
import yaml

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import load_saved_overrides, merge_resumed

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


TYPED = ["strategy=ddp", "optimizer.lr=0.5", "trainer.max_epochs=3"]


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.slow
def test_a_section_that_is_missing_is_named_or_gets_its_defaults(make_run: Make, emptied: bool) -> None:
    _, run = make_run()
    whole = yaml.safe_load(run.config.read_text())
    tree = compose([*TYPED, f"resume={run.path}"])
    for section in whole:
        rest = {k: v for k, v in whole.items() if k != section} | ({section: {}} if emptied else {})
        run.config.write_text(yaml.safe_dump(rest))
        try:
            merge_resumed(tree, run, TYPED)
        except ProjectError as error:
            assert emptied or f"{run.config} is damaged (it lacks {section})" in str(error)
        else:
            assert emptied or section != "strategy"

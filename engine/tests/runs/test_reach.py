"""An untrusted run folder sends nothing, listens nowhere, and reads no variables."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import get_args, get_type_hints

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.inference.trained_model import read_config
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import load_saved_overrides, merge_resumed
from train_anywhere.runs.reopen.trust import OF_TARGETS, find_outward_values
from train_anywhere.search import loop

Make = Callable[..., tuple[Config, RunDir]]
Train = Callable[..., "CompletedProcess[str]"]


def handed_over(run: RunDir) -> RunDir:
    """The folder that a colleague gives to this user, who has never run it there."""
    return RunDir(Path(shutil.copytree(run.path, run.path.with_name("handed-over"))))


def resume(run: RunDir, *typed: str) -> dict[str, object]:
    """The configuration that src/train.py continues with."""
    overrides = [*load_saved_overrides([f"resume={run.path}", *typed]), f"resume={run.path}", *typed]
    return merge_resumed(compose(overrides), run, overrides)


def asked(run: RunDir, *typed: str) -> list[str]:
    """Return the keys or lines of overrides.txt that the refusal names."""
    with pytest.raises(ConfigError) as refused:
        resume(run, *typed)
    start = f"the run folder {run.path} brings "
    assert all(
        p.startswith(start) and p.endswith("add trust=true to run it.") for p in refused.value.problems
    )
    return sorted(p.removeprefix(start).partition("=")[0] for p in refused.value.problems)


WANDB = ("loggers=wandb", "loggers.wandb.offline=true")
REACHING = {
    "another server": (
        ["loggers=mlflow", "loggers.mlflow.tracking_uri=http://127.0.0.1:9"],
        ["loggers.mlflow.tracking_uri"],
    ),
    "settings of a logger": (
        [*WANDB, "++loggers.wandb.settings.base_url=http://127.0.0.1:9"],
        ["loggers.wandb.offline", "loggers.wandb.settings.base_url"],
    ),
    "a port": (["monitor.serve=true"], ["monitor.serve"]),
    "a folder for checkpoints": (["checkpoint.local=/tmp/x"], ["checkpoint.local"]),
    "a variable in a folder": (["checkpoint.local=$HOME/x"], ["checkpoint.local"]),
    "a folder for downloads": (["data=mnist", "data.dir=/tmp/x"], ["data.dir"]),
    "a folder for all data": (["data=mnist", "paths.data=/tmp/x"], ["data.dir"]),
    "a folder for tokens": (["data=text", "task=language_model", "model=gpt", "data.cache=/tmp/x"], ["data.cache"]),
    "a folder on nodes": (["cluster.local_disk=/home"], ["cluster.local_disk"]),
    "mail": (
        ["cluster=slurm", "cluster.mail_user=a@b.c", "cluster.mail_type=ALL"],
        ["cluster.mail_type", "cluster.mail_user"],
    ),
    "arguments of a callback": (
        ["callbacks=learning_rate", "callbacks.learning_rate.logging_interval=epoch"],
        ["callbacks.learning_rate.logging_interval"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHING)
@pytest.mark.quick("a folder for checkpoints", "a port")
def test_what_reaches_out_of_a_foreign_run_is_shown_and_refused(make_run: Make, name: str) -> None:
    words, keys = REACHING[name]
    _, own = make_run(*words)
    resume(own)  # this user's own run needs no word
    run = handed_over(own)
    assert asked(run) == keys
    assert resume(run, "trust=true")["trust"] is True
    if "paths.results" not in keys:  # can't be typed
        resume(run, *[f"++{w}" if w.startswith(("loggers.", "callbacks.", "data.")) else w for w in words])


HARMLESS = {
    "name", "note", "resume", "after", "written", "paths.results", "paths.data", "checkpoint.monitor", "strategy.blocks",
    "study", "trainer.nodes", "trainer.total_devices", "trainer.max_time", "trainer.early_stopping.monitor",
    "trainer.profiler", "trainer.extra",
}  # fmt: skip
"""Keys with free strings that neither run nor connect. Arguments of trainer.extra are judged one by one. Any other may be a command."""


def keys_of_text(section: type, prefix: str = "") -> Iterator[str]:
    """Yield keys of a section, and below it, whose value may be any string."""
    for name, hint in get_type_hints(section).items():
        kinds = {hint, *get_args(hint)}
        sections = [kind for kind in kinds if is_dataclass(kind)]
        for section_of_key in sections:
            yield from keys_of_text(section_of_key, f"{prefix}{name}.")
        if not sections and kinds & {str, list[str]}:
            yield f"{prefix}{name}"


def test_each_key_with_free_text_reaches_out_or_is_known_to_be_harmless() -> None:
    keys = {key for key in keys_of_text(Config) if key.partition(".")[0] not in OF_TARGETS}
    assert {key for key in keys if not find_outward_values({key: "x"})} == HARMLESS


@pytest.mark.parametrize(
    "words",
    [
        ["model=mlp", "model.hidden=[64]", "optimizer=sgd", "trainer.max_epochs=3", "checkpoint.local=null"],
        ["data=imagefolder", "data.workers=8", "model=resnet18"],
        ["loggers=[wandb,mlflow]", "name=mine"],
        ["cluster=neuron", "cluster.time=60", "trainer.devices=2", "trainer.precision=bf16-mixed"],
        ["experiment=regression", "callbacks=learning_rate"],
        ["strategy=ddp", "monitor.serve=false", "monitor.hang=requeue", "checkpoint.monitor=val/loss"],
    ],
)
@pytest.mark.quick("words3", "words5")
def test_a_foreign_run_that_reaches_nowhere_else_is_not_asked_for(
    make_run: Make, words: Sequence[str]
) -> None:
    resume(handed_over(make_run(*words)[1]))


def test_no_variable_is_read_for_the_overrides_of_a_foreign_run(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = handed_over(make_run("loggers=mlflow", "seed=3")[1])
    lines = ["data.dir=${oc.env:A_SECRET}", '++task.x="${oc.${y}:A_SECRET}"', "seed=${now:%S}"]
    run.overrides.write_text("\n".join(["loggers=mlflow", *lines]))
    assert load_saved_overrides([f"++resume={run.path}", "trust=false"]) == ["loggers=mlflow"]
    assert resume(run, "trainer.max_epochs=4")["seed"] == 3  # of config.yaml
    assert load_saved_overrides([f"resume={run.path}", "trust=true"]) == ["loggers=mlflow", *lines]


def test_one_s_own_run_reads_its_variables_again(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FOLDER", "/data/mnist")
    _, run = make_run(
        "data=mnist",
        "++data.dir=${oc.env:A_FOLDER}",
        "loggers=mlflow",
        "++loggers.mlflow.tags.a=${oc.env:HOME}",
    )
    assert resume(run)["data"]["dir"] == "/data/mnist"  # type: ignore[index]


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:A_SECRET}",
        "x${oc.env:A_SECRET}",
        ["a", {"b": "${oc.env:A_SECRET}"}],
        "$A_SECRET/x",
        "\\${oc.env:A_SECRET}",
    ],
)
def test_a_variable_in_config_yaml_is_found_wherever_it_is(value: object) -> None:
    assert find_outward_values({"loggers.anything.x": value}, training=False) == ["loggers.anything.x"]
    assert not find_outward_values({"name": "a\\$b", "trainer.max_time": "a$ b"})


def test_own_code_with_other_arguments_is_asked_for(make_run: Make) -> None:
    flat = {"model._target_": "mine.Net", "model.name": "custom", "model.hidden": [64, 64], "model.lr": 0.1}
    assert [*find_outward_values({**flat, "model.weights": "http://evil", "model.pretrained": True})] == [
        *("model._target_", "model.name", "model.weights", "model.pretrained")
    ]


@pytest.mark.parametrize(
    "value", ["2026-01-01", "[{2026-01-01: x}]", "&a [*a]", "!!set {a}", "!!binary aGk=", ".nan"]
)
@pytest.mark.quick("!!set {a}", "[{2026-01-01: x}]")
def test_whatever_yaml_holds_is_shown(make_run: Make, value: str) -> None:
    run = handed_over(make_run("loggers=wandb")[1])
    run.config.write_text(run.config.read_text().replace("entity: null", f"entity: {value}"))
    assert asked(run) == ["loggers.wandb.entity"]


def test_a_search_continues_only_trials_of_its_own(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("loggers=mlflow", "loggers.mlflow.tracking_uri=http://127.0.0.1:9", "monitor.serve=true")
    config, own = make_run(*words)
    found = {0: own}
    monkeypatch.setattr(loop, "members", lambda folder: found)
    assert loop.open_trial(config, words, tmp_path / "study", 0) is own
    found[0] = handed_over(own)
    with pytest.raises(ConfigError, match=r"brings loggers\.mlflow\.tracking_uri="):
        loop.open_trial(config, words, tmp_path / "study", 0)


def test_an_evaluation_asks_only_for_what_it_uses(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "data=mnist", "data.dir=/tmp/x", "loggers=mlflow", "loggers.mlflow.tracking_uri=http://127.0.0.1:9", "monitor.serve=true",
    )  # fmt: skip
    _, own = make_run(*words)
    read_config(own, [])
    run = handed_over(own)
    with pytest.raises(ConfigError, match=r"brings data\.dir='/tmp/x'") as refused:
        read_config(run, [])
    assert len(refused.value.problems) == 1
    assert read_config(run, ["data.dir=/tmp/y"]).data.arguments["dir"] == "/tmp/y"
    read_config(run, ["trust=true"])
    run.config.write_text(run.config.read_text().replace("http://127.0.0.1:9", "${oc.env:HOME}"))
    with pytest.raises(ConfigError, match=r"brings loggers\.mlflow\.tracking_uri="):
        read_config(run, ["data.dir=/tmp/y"])

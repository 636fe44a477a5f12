"""Keys typed by another name: the message has the key that is meant."""

from typing import Any

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.keys import flatten
from train_anywhere.config.load import load
from train_anywhere.config.other_names import OTHER_NAMES, OTHER_WAYS, keys_meant, with_keys_meant
from train_anywhere.config.signatures import read
from train_anywhere.config.strict import unknown_key
from train_anywhere.errors import ConfigError

MEANT = {
    "gpus": ["trainer.devices"], "trainer.gpus": ["trainer.devices"],
    "cluster.ntasks-per-node": ["trainer.devices"], "nodes": ["trainer.nodes"],
    "cluster.nodes": ["trainer.nodes"], "trainer.epochs": ["trainer.max_epochs"], "time": ["cluster.time"],
    "sbatch.time": ["cluster.time"], "Account": ["cluster.account"], "lr": ["optimizer.lr"],
    "trainer.batch_size": ["data.batch_size"], "trainer.dry_run": ["dry_run"],
    "mode": ["trainer.early_stopping.mode", "checkpoint.mode"],
    "trainer.steps_per_epoch": ["trainer.limit_train_batches"],
    "validation_freq": ["trainer.check_val_every_n_epoch"],
    "cluster.slurm_partition": ["cluster.partition"], "model.scheduler": ["schedule"],
    "trainer.optimizer": ["optimizer"], "batch size": ["data.batch_size"], "trainer.name": [],
    "nonsense": [], "cluster.site.nodes[0].gpu": [],
}  # fmt: skip


@pytest.fixture(scope="session")
def tree() -> dict[str, object]:
    return compose([])


def test_the_keys_that_are_meant(tree: dict[str, object]) -> None:
    assert {word: keys_meant(word, tree) for word in MEANT} == MEANT


def test_other_names_lead_to_keys_and_are_none(tree: dict[str, object]) -> None:
    keys = {*flatten(tree), *tree}
    assert {*OTHER_NAMES} <= keys
    names = " ".join(OTHER_NAMES.values()).split()
    assert len({*names}) == len(names)
    same = {*names} & {key.rpartition(".")[2] for key in keys}
    assert same == {"scheduler"}  # of a learning rate: cluster.scheduler is not typed


def test_a_key_of_the_command_line_and_of_a_file(tree: dict[str, object]) -> None:
    said = "is not a key of the configuration. Did you mean"
    refused = diagnose(["trainer.gpus=4", "batch_size=3"], ConfigError("x"))
    assert refused.problems[1:] == [
        f"'trainer.gpus' {said} 'trainer.devices'?",
        f"'batch_size' {said} 'data.batch_size'?",
    ]
    with pytest.raises(ConfigError) as error:
        load(tree | {"lr": 3, "trainer": {**tree["trainer"], "epochs": 2}})  # type: ignore[dict-item]
    assert error.value.problems == [
        f"'lr' {said} 'optimizer.lr'?",
        f"'trainer.epochs' {said} 'trainer.max_epochs'?",
    ]


def test_arguments_of_other_programs_that_are_no_key_have_another_way() -> None:
    ways = {key: way for word, way in OTHER_WAYS.items() for key in (word, f"trainer.{word}")}
    said = diagnose([f"{key}=1" for key in ways], ConfigError("x")).problems
    assert said[1:] == [f"'{key}' is not a key of the configuration; {way}." for key, way in ways.items()]


WRONG = {
    "trainer.benchmark": "Did you mean 'trainer.extra.benchmark'?",
    "trainer.detect_anomaly": "Did you mean 'trainer.extra.detect_anomaly'?",
    "trainer.logger": "Did you mean 'loggers'?",
    "trainer.strategy": "Did you mean 'strategy'?",
    "reload_dataloaders_every_n_epochs": "Did you mean 'trainer.extra.reload_dataloaders_every_n_epochs'?",
    "checkpoint.save_top_k": "is always kept, and is what the test and exports use.",
    "checkpoint.every_n_train_steps": "Did you mean 'checkpoint.every_n_steps'?",
    "data.pin_memory": "; see docs/how-to/large-data.md.",
    "data.drop_last": "; see docs/concepts/own-code.md.",
    "trainer.loss_weights": "; compile the keras.Model with it in the function that task._target_ names.",
    "trainer.clipvalue": "Did you mean 'trainer.gradient_clip_val'?",
    "cluster.licenses": "Did you mean 'cluster.extra=[--licenses=...]'?",
    "gpu_bind": "Did you mean 'cluster.extra=[--gpu-bind=...]'?",
    "cluster.array": "; type -m and several values of a key: a sweep is one job array.",
    "per_device_train_batch_size": "Did you mean 'data.batch_size'?",
    "warmup_steps": "Did you mean 'schedule.warmup_epochs'?",
    "slurm_array_parallelism": "Did you mean 'cluster.max_running'?",
    "max_restarts": "Did you mean 'cluster.retries'?",
    "master_addr": "; see docs/reference/environment-variables.md.",
    "optimizer.momentum": "It is a key of optimizer=sgd.",
    "data.val_fraction": "It is a key of data=imagefolder|shards|text.",
    "strategy.blocks": "It is a key of strategy=fsdp.",
}
"""Arguments of Lightning, Keras, Slurm, submitit and Hugging Face's trainer as keys, and keys of other choices."""


def test_wrong_keys_have_a_hint() -> None:
    problems = diagnose([f"{key}=1" for key in WRONG], ConfigError("x")).problems
    found = {key: [one for one in problems if one.startswith(f"'{key}' is not ")] for key in WRONG}
    assert [key for key, lines in found.items() if [WRONG[key] in one for one in lines] != [True]] == []
    said = diagnose(
        ["loggers.wandb.settings=x"], ConfigError("loggers.wandb._target_ is missing; give it")
    ).problems
    assert "loggers.wandb: add loggers=wandb, whose keys these are." in said


def test_a_wrong_argument_of_a_target_has_the_same_hint(tree: dict[str, Any]) -> None:
    wrong = {"data": {"val_split": 0.1, "worker": 3, "pin_memory": True}, "task": {"lr": 3}}
    with pytest.raises(ConfigError) as error:
        load({**tree, **{section: {**tree[section], **keys} for section, keys in wrong.items()}})
    digits = "is not an argument of src.data.digits.open_digits"
    task, *data = sorted(error.value.problems, key=lambda problem: "task" not in problem)
    assert task.endswith(". Known: name, monitors. Did you mean 'optimizer.lr'?")
    known = "Known: name, batch_size, workers, stage"
    assert sorted(data) == [
        f"'data.pin_memory' {digits}. {known}; see docs/how-to/large-data.md.",
        f"'data.val_split' {digits}. {known}; let data._target_ return the validation rows too: (train, val).",
        f"'data.worker' {digits}. Did you mean 'data.workers'?",
    ]


def test_each_argument_of_the_trainer_and_its_callbacks_has_a_hint(tree: dict[str, object]) -> None:
    for place, section in {
        "Trainer": "trainer",
        "callbacks.ModelCheckpoint": "checkpoint",
        "callbacks.EarlyStopping": "trainer.early_stopping",
    }.items():
        for name in read(f"lightning.pytorch.{place}").parameters:
            key = f"{section}.{name}"
            said = with_keys_meant(unknown_key(key, "."), tree)
            known = key in flatten(tree) or name in NO_HINT
            assert known or not said.endswith("configuration."), said


NO_HINT = {
    "auto_insert_metric_name", "check_on_train_epoch_end", "dirpath", "filename", "limit_predict_batches", "log_rank_zero_only",
    "save_on_exception", "save_on_train_epoch_end", "enable_version_counter", "strict",
}  # fmt: skip
"""Arguments without a meaning here."""

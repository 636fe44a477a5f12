"""Metrics that decide which checkpoint is the best."""

from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.checks.monitors import describe_best_checkpoint, infer_mode
from train_anywhere.config.command.compose import list_groups
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError

MakeConfig = Callable[..., Config]


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stranger_task.py").write_text(
        "import torch\nclass Lit(torch.nn.Module):\n    def __init__(self): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "task._target_=stranger_task.Lit"


@pytest.mark.parametrize(
    "words, best, early",
    [
        ([], ("val/acc", "max"), ("val/loss", "min")),
        (["task=regression", "data=friedman", "model=mlp"], ("val/mae", "min"), ("val/loss", "min")),
        (["checkpoint.monitor=train/loss"], ("train/loss", "min"), ("val/loss", "min")),
        (["trainer.early_stopping.monitor=val/acc"], ("val/acc", "max"), ("val/acc", "max")),
        (["checkpoint.monitor=val/acc", "checkpoint.mode=min"], ("val/acc", "min"), ("val/loss", "min")),
    ],
)
def test_a_native_task_says_what_is_best(
    words: list[str], best: tuple[str, str], early: tuple[str, str], make_config: MakeConfig
) -> None:
    config = make_config(*words)
    stopping = config.trainer.early_stopping
    assert (config.checkpoint.monitor, config.checkpoint.mode) == best
    assert (stopping.monitor, stopping.mode) == early


def test_of_another_task_the_name_says_it_or_the_user(stranger: str, make_config: MakeConfig) -> None:
    assert make_config(stranger).checkpoint.monitor is None
    assert make_config(stranger, "checkpoint.monitor=val_loss").checkpoint.mode == "min"
    assert make_config(stranger, "checkpoint.monitor=spread", "checkpoint.mode=max").checkpoint.mode == "max"


MODES = {
    "max": ["val/accuracy", "val_acc", "valid_dataset_iou", "val_mIoU", "test/MulticlassF1Score", "val_BinaryAUROC",
            "mean_average_precision", "top5_acc", "val_f1/dataloader_idx_0", "val_sparse_categorical_accuracy", "R2Score", "valacc", "mAP"],
    "min": ["val_loss/dataloader_idx_0", "accuracy_loss", "error_rate", "MeanSquaredError", "val_sparse_categorical_crossentropy",
            "val/cross_entropy", "BinaryCrossEntropy", "RMSE", "loss_of_heads"],
    None: ["val/space", "power", "answer", "entropy", "val/score"],
}  # fmt: skip


def test_the_last_word_of_a_name_says_what_is_better() -> None:
    assert {mode: [n for n in names if infer_mode(n) == mode] for mode, names in MODES.items()} == MODES


def test_a_run_says_what_is_best_of_a_task_that_does_not(stranger: str, make_config: MakeConfig) -> None:
    lines = [
        describe_best_checkpoint(config.task, config.checkpoint)
        for config in (
            make_config(),
            make_config(stranger),
            make_config(stranger, "checkpoint.monitor=val_f1"),
        )
    ]
    assert lines == ["", "", "the best checkpoint has the greatest val_f1 (checkpoint.mode=max)"]


def test_a_monitor_that_can_not_be_one(stranger: str, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(stranger, "trainer.early_stopping.patience=3")
    assert caught.value.problems == [
        "trainer.early_stopping.patience=3 needs a metric to monitor, and those of this task are unknown before it runs; "
        "use trainer.early_stopping.monitor=NAME."
    ]


@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_a_metric_may_have_its_name_in_keras(framework: str, make_config: MakeConfig) -> None:
    """Metrics of a native task have one name in both frameworks, unlike a LightningModule's."""
    words = [f"framework={framework}", "checkpoint.monitor=val_acc", "trainer.early_stopping.monitor=loss"]
    native = make_config(*words)
    assert (native.checkpoint.monitor, native.trainer.early_stopping.monitor) == ("val/acc", "train/loss")
    model, data = {"lightning": ("LitDigits", "DigitsData"), "keras": ("make_model", "open_data")}[framework]
    file = {"lightning": "examples.lightning_module", "keras": "examples.keras_model"}[framework]
    own = make_config(*words, f"task._target_={file}.{model}", f"data._target_={file}.{data}")
    assert own.checkpoint.monitor == {"lightning": "val_acc", "keras": "val/acc"}[framework]


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("choice", sorted({*list_groups()["task"]} - {"custom"}))
def test_the_first_metric_of_a_task_decides_which_checkpoint_is_the_best(
    choice: str, framework: str, make_config: MakeConfig
) -> None:
    config = make_config(f"task={choice}", f"framework={framework}")
    name, mode = next(iter(config.task.monitors.items()))
    assert (config.checkpoint.monitor, config.checkpoint.mode) == (f"val/{name}", mode)

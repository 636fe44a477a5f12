"""Which metric says what is best."""

from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.schema import Config
from src.errors import ConfigError

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
    assert make_config(stranger, "checkpoint.monitor=f1", "checkpoint.mode=max").checkpoint.mode == "max"


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["checkpoint.monitor=val/accuracy"], "checkpoint.monitor=val/accuracy is not a known metric; "
            "use one of train/loss, train/acc, val/loss, val/acc."),
        (["STRANGER", "checkpoint.monitor=f1"], "checkpoint.monitor=f1 may be better high or low, and its name does not say; "
            "add checkpoint.mode=max or checkpoint.mode=min."),
        (["STRANGER", "trainer.early_stopping.patience=3"], "trainer.early_stopping.patience=3 needs a metric to watch, "
            "and the task's are not known before it runs; use trainer.early_stopping.monitor=NAME."),
    ],
)  # fmt: skip
def test_a_monitor_that_can_not_be_one(
    words: list[str], sentence: str, stranger: str, make_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(*(stranger if w == "STRANGER" else w for w in words))
    assert caught.value.problems == [sentence]

"""Arguments of targets are checked from source, at submission."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.config.checks.targets import target_notes, task_has_network
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load, to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ENGINE

STRANGER = """
import lightning.pytorch as pl

class LitModule(pl.LightningModule):
    def __init__(self, hidden: int, dropout: float = 0.0, names: list[str] | None = None):
        super().__init__()

import keras

class KerasModel(keras.Model):
    def __init__(self, hidden: int, dropout: float = 0.0, names: list[str] | None = None):
        super().__init__()

class Takes(pl.LightningModule):
    def __init__(self, optimizer, net=None, layers: list[str] | None = None):
        super().__init__()

BATCH = 16

class OwnBatch(pl.LightningDataModule):
    def __init__(self, rows: int = 8, batch_size: int = BATCH):
        super().__init__()

def without(batch_size=None):
    ...

def open_data(seed, batch_size, rows: int = 10):
    ...
"""

Load = Callable[..., Config]


@pytest.fixture
def load_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *words: load(compose(to_hydra_overrides(words)))


def problems(load_words: Load, *words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_words(*words)
    return caught.value.problems


def test_a_module_of_ones_own(load_words: Load) -> None:
    config = load_words(
        "task._target_=stranger.LitModule",
        "task.hidden=64",
        "data._target_=stranger.open_data",
        "checkpoint.monitor=val_loss",
    )
    assert config.task.target[config.framework] == "stranger.LitModule"
    assert config.task.arguments == {"hidden": 64}
    assert (config.task.name, config.name, config.data.batch_size) == ("custom", "open_data", 32)
    assert (config.checkpoint.monitor, config.checkpoint.mode) == ("val_loss", "min")
    assert task_has_network(config.task, config.framework)
    assert load(to_tree(config)) == config


def test_arguments_that_do_not_fit(load_words: Load) -> None:
    """One by one they are in engine/tests/bad_inputs/rows/targets.py."""
    words = ("task.hidden=3", "task.names=[1.5,{a: 1}]", "task.depth=2", "model.hidden=3")
    assert problems(load_words, "task._target_=stranger.LitModule", *words) == [
        "'task.depth' is not an argument of stranger.LitModule. Known: hidden, dropout, names, name, monitors.",
        "task.names[1]='{'a': 1}' is not a string.",
    ]


def test_a_target_for_each_framework(load_words: Load) -> None:
    both = "task._target_={lightning: stranger.LitModule, keras: stranger.KerasModel}"
    assert load_words(both, "task.hidden=3").task.arguments == {"hidden": 3}
    assert load_words(both, "framework=keras", "task.hidden=4").task.arguments == {"hidden": 4}
    one = "optimizer._target_={lightning: torch.optim.Muon}"
    assert problems(load_words, one, "framework=keras") == [
        "optimizer=custom has no target for framework=keras, only for lightning; use framework=lightning, or another optimizer."
    ]


def test_supplied_arguments_need_not_be_given(load_words: Load) -> None:
    config = load_words(
        "optimizer._target_=torch.optim.Muon",
        "optimizer.lr=0.1",
        "schedule._target_=torch.optim.lr_scheduler.OneCycleLR",
        "schedule.max_lr=1.0",
    )
    assert config.optimizer.lr == 0.1
    assert problems(load_words, "schedule._target_=torch.optim.lr_scheduler.OneCycleLR") == [
        "'schedule.max_lr' is missing: torch.optim.lr_scheduler.OneCycleLR needs it."
    ]


@pytest.mark.parametrize(
    "words, batch_size",
    [
        (["data._target_=stranger.OwnBatch"], 16),
        (["data._target_=stranger.OwnBatch", "data.batch_size=8"], 8),
        (["data._target_={lightning: stranger.OwnBatch}"], 16),
        (["data._target_=stranger.without"], 32),
        (["data._target_=stranger.open_data"], 32),
        (["data._target_=math.sqrt"], 32),
        (["data=digits"], 96),
    ],
)
@pytest.mark.quick("words5-32", "words6-96")
def test_the_default_batch_of_a_data_set_stays(load_words: Load, words: list[str], batch_size: int) -> None:
    assert load_words(*words).data.batch_size == batch_size


def test_callbacks_and_loggers_of_any_number(load_words: Load) -> None:
    config = load_words(
        "callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor",
        "callbacks.lr.logging_interval=step",
        "callbacks.summary._target_=lightning.pytorch.callbacks.ModelSummary",
        "loggers.csv._target_=lightning.pytorch.loggers.CSVLogger",
    )
    assert set(config.callbacks) == {"lr", "summary"}
    assert load(to_tree(config)) == config


def test_what_cannot_be_read_is_named(load_words: Load) -> None:
    config = load_words("data._target_=math.sqrt")
    assert target_notes(config) == [
        "data._target_=math.sqrt can't be read from source: its arguments are checked when the ranks start."
    ]


def test_problems_are_in_the_order_of_the_schema(load_words: Load) -> None:
    found = problems(load_words, "model.odd=1", "data.odd=1", "task.odd=1")
    assert [p.split("'")[1] for p in found] == ["task.odd", "data.odd", "model.odd"]


def test_nothing_of_a_target_is_imported(load_words: Load) -> None:
    code = f"""
import sys
sys.path[:0] = [{sys.path[0]!r}, {str(ENGINE)!r}]
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
tree = compose(to_hydra_overrides(["task._target_=stranger.LitModule", "task.hidden=3", "optimizer._target_=torch.optim.Muon"]))
load(tree)
assert not {{"torch", "lightning", "keras", "tensorflow", "numpy", "stranger"}} & set(sys.modules), sys.modules.keys()
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


ADAM = "_target_: torch.optim.Adam, _partial_: true"


@pytest.mark.parametrize(
    "argument, sentences",
    [
        (f"optimizer={{{ADAM}, lr: 0.001}}", []),
        ("optimizer={_target_: torch.optim.Adam, lr: 0.1}", ["'task.optimizer.params' is missing: torch.optim.Adam needs it."]),
        ("optimizer={_target_: torch.optim.Adam, _args_: [[]], lr: 0.1}", []),
        (f"optimizer={{{ADAM}, lrr: 0.1}}", ["'task.optimizer.lrr' is not an argument of torch.optim.Adam"]),
        (f"optimizer={{a: [{{{ADAM}, lrr: 0.1}}]}}", ["'task.optimizer.a[0].lrr' is not an argument of torch.optim.Adam"]),
        ("optimizer={_target_: stranger.Takes, _recursive_: false, optimizer: {_target_: zzq.None}}", []),
        (f"optimizer={{{ADAM}, _convert_: some}}", ["task.optimizer._convert_='some' is not one of none, partial, object, all."]),
        ("optimizer={_target_: torch.optim.Adam, _partial_: yes}", ["task.optimizer._partial_='yes' is not true or false."]),
        ("optimizer={_target_: {keras: a.b}}", ["task.optimizer._target_={'keras': 'a.b'}: is not a dotted name."]),
        (f"_args_=[{{{ADAM}}}]", []),
        ("_args_=[1,2,[{a: 1}]]", ["task._args_[2][0]='{'a': 1}' is not a string."]),
    ],
)  # fmt: skip
@pytest.mark.quick(
    "_args_=[{_target_: torch.optim.Adam, _partial_: true}]-sentences9", "_args_=[1,2,[{a: 1}]]-sentences10"
)
def test_hydra_s_own_keys_of_a_target(load_words: Load, argument: str, sentences: list[str]) -> None:
    words = ("task._target_=stranger.Takes", f"task.{argument}")
    if not sentences:
        config = load_words(*words)
        assert load(to_tree(config)) == config
        return
    found = problems(load_words, *words)
    assert any(p.startswith(sentences[0]) for p in found), found


def test_a_partial_optimizer_is_completed_by_this_project(load_words: Load) -> None:
    config = load_words("optimizer._target_=torch.optim.Muon", "optimizer._partial_=true")
    assert config.optimizer.arguments == {}


TRAINING_FILE = """
import pytorch_lightning as pl

class Net(pl.LightningModule):
    def __init__(self, hidden: int = 1):
        super().__init__()

"""


def write_file(tmp_path: Path, end: str, name: str = "at_import") -> None:
    (tmp_path / f"{name}.py").write_text(TRAINING_FILE + end)


def test_a_target_whose_import_trains_is_refused_noted_or_accepted(load_words: Load, tmp_path: Path) -> None:
    write_file(tmp_path, "trainer = pl.Trainer(max_epochs=1)\ntrainer.fit(Net())\n")
    for key in ("task", "callbacks.one"):
        [found, *_] = problems(load_words, f"{key}._target_=at_import.Net")
        assert "at_import.py calls trainer.fit (line 9) when it is imported" in found
        assert 'below if __name__ == "__main__": or start the file as it is: python src/run.py -- ' in found
    write_file(tmp_path, "if Net:\n    pl.Trainer().fit(Net())\n", "perhaps")
    [note] = target_notes(load_words("task._target_=perhaps.Net"))
    assert "calls pl.Trainer().fit (line 9) when it is imported, on every rank; if that trains" in note
    write_file(tmp_path, "if __name__ == '__main__':\n    pl.Trainer().fit(Net())\n", "guarded")
    assert target_notes(load_words("task._target_=guarded.Net")) == []

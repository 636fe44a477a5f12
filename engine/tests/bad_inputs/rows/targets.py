"""Misspelt targets of user code."""

from engine.tests.bad_inputs.row import Damage, Row

MINE = """
import lightning.pytorch as pl

class LitModule(pl.LightningModule):
    def __init__(self, hidden: int, dropout: float = 0.0): ...

import keras

class KerasModel(keras.Model):
    def __init__(self, hidden: int, dropout: float = 0.0): ...

def open_data(rows: int = 10): ...

value = 3
"""
FILES: dict[str, Damage] = {"project/mine.py": MINE}
OURS = "task._target_=mine.LitModule"
WORDS = {
    f"{OURS} task.hiden=3": r"'task.hiden' is not an argument of mine.LitModule. Did you mean 'task.hidden'\?",
    OURS: "'task.hidden' is missing: mine.LitModule needs it.",
    f"{OURS} task.hidden=many": "task.hidden='many' is not a whole number.",
    f"{OURS} task.hidden=3 task._partial_=true": "'task._partial_' is not a key of the configuration",
    f"{OURS} task.hidden=3 checkpoint.monitor=quux": "checkpoint.monitor=quux may be better high or low.*add checkpoint.mode=max",
    f"{OURS} task.hidden=3 framework=keras": "task._target_=mine.LitModule is for lightning, and this is framework=keras; use framework=lightning.",
    "task._target_=mine.KerasModel": "task._target_=mine.KerasModel is for keras, and this is framework=lightning; use framework=keras.",
    "task._target_=mine.LitModul": r"mine has no LitModul. Did you mean 'LitModule'\?",
    "task._target_=mine": "mine is a module; name a class or function in it: .*LitModule",
    "task._target_=zzq_nowhere.Name": "package 'zzq_nowhere' is not found in this project or its environment",
    "task._target_=mine/LitModule": "'mine/LitModule' is a path; write the name with dots",
    "'data._target_={zzq: a.b}'": r"data._target_=\{'zzq': 'a.b'\} is not a dotted name, nor one for each of lightning",
    "data._target_=[a]": r"data._target_=\['a'\] is not a dotted name, nor one for each of lightning",
    "task=custom": "task._target_ is missing; give it a class or function",
    "data._target_=mine.open_data data.row=3": r"'data.row' is not an argument of mine.open_data. Did you mean 'data.rows'\?",
    "data._target_=mine.open_data data.rows=x": "data.rows='x' is not a whole number.",
    "'model._target_={keras: mine.KerasModel}'": "model=custom has no target for framework=lightning, only for keras; use framework=keras",
    "model.from_data.widht=3 model=mlp": "model.from_data.widht: src.models.*mlp.mlp has no argument 'widht'",
    "callbacks.stop.patience=3": "callbacks.stop._target_ is missing",
    "callbacks=learning_rate framework=keras": "callbacks.learning_rate has no target for framework=keras, only for lightning",
    "loggers.mine=3": "loggers.mine='?3'? is not a section|loggers",
    "checkpoint.monitor=val/mae": "checkpoint.monitor=val/mae is not a known metric; use one of train/acc, train/loss, val/acc, val/loss.",
    "experiment=regression checkpoint.monitor=val/acc": "use one of train/mae, train/loss, train/r2, val/mae, val/loss, val/r2.",
    "data.from_data=3": r"'data\.from_data' is not an argument of",
    "callbacks=3": "callbacks=3 is not a choice. Known: learning_rate",
    "callbacks.a=null": r"callbacks\.a=null is not a section of keys",
    "callbacks.a._target_=3": r"callbacks\.a\._target_=3 is not a dotted name",
    f"callbacks.a.{OURS.partition('.')[2]}": r"'callbacks\.a\.hidden' is missing",
    "loggers=wandb loggers.wandb.projct=x": r"'loggers\.wandb\.projct' is not an argument of .*Did you mean 'loggers\.wandb\.project'",
}
BROKEN: list[tuple[dict[str, Damage], str]] = [
    ({"project/mine.py": "class LitModule(:\n"}, r"mine.py is not valid Python \(line 1\)"),
    ({"project/mine.py": b"x = '\xff'\n"}, "mine.py"),
    ({"project/mine.py": ""}, "mine has no LitModule"),
    ({"project/configs/task/mine.yaml": "name: mine\n"}, "task._target_ is missing"),
    ({"project/configs/task/mine.yaml": "name: mine\n_target_: [a]\n"}, "is not a dotted name"),
]
ROWS = [
    *(Row(words, says, files=FILES) for words, says in WORDS.items()),
    *(Row("task=mine" if "yaml" in str([*files]) else OURS, says, files=files, name=f"a broken mine {n}") for n, (files, says) in enumerate(BROKEN)),
]  # fmt: skip

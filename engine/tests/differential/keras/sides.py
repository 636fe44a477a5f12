"""Run a program with plain Keras and with the engine in forks, and return the results."""

import csv
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from engine.tests.differential.forks import ForkError, call_in_forks
from engine.tests.differential.keras import programs
from engine.tests.differential.keras.specs import Spec
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.data.order.shuffle import shuffled_rows
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch.local_run import make_run as new_run
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.keras.checkpoint import disable_graph_optimizer
from train_anywhere.training.keras.dropin.gradients import name_variables
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.keras.run import train

Result = dict[str, Any]

HERE = "engine.tests.differential.keras.programs"
SEED = 5


def fork(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a function in a fork, or {"error": its last words}."""
    [found] = call_in_forks([partial(function, *arguments)], timeout=90)
    return {"error": " ".join(str(found).split())[-300:]} if isinstance(found, ForkError) else found


def translations(spec: Spec) -> set[str]:
    """Return the keys of the intended differences that this program meets."""
    return {
        key
        for key, meets in {
            "keras-order": spec["train"] == "arrays",
            "keras-limit": bool(spec["steps"]) and spec["train"] in ("tf.data", "PyDataset"),
            "keras-graph-optimizer": not spec["eager"],
        }.items()
        if meets
    }


class Ordered(programs.Batches):
    """Arrays in the order in which the engine reads them, without the incomplete batch."""

    def __init__(self, arrays: tuple[np.ndarray, ...], batch: int, steps: int | None) -> None:
        super().__init__(arrays, batch)
        self.length = min(steps or len(arrays[0]), max(1, len(arrays[0]) // batch))

    def __getitem__(self, number: int) -> Any:
        start, rows = number * self.batch, len(self.arrays[0])
        chosen = shuffled_rows(rows, SEED, max(0, self.shift - 1), start, start + self.batch)
        return tuple(array[chosen] for array in self.arrays)


class Weights(keras.callbacks.Callback):
    """Keeps the weights at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found = {name: np.array(v).tobytes() for name, v in name_variables(self.model.variables).items()}
        self.steps = int(self.model.optimizer.iterations)


def run_alone(spec: Spec, keys: set[str]) -> Result:
    """Return the result of `fit` and `evaluate`. `keys` are the intended differences to follow."""
    programs.SPEC = spec
    keras.utils.clear_session()
    if "keras-graph-optimizer" in keys:
        disable_graph_optimizer()
    keras.utils.set_random_seed(SEED)  # of a shuffle
    data, val, test = (programs.open_split(split) for split in ("train", "val", "test"))
    model = programs.make_model()
    callbacks = [programs.make_callback(n) for n in range(len(spec["callbacks"]))]
    kept = Weights()
    steps, freq = spec["steps"], spec["freq"]
    words: dict[str, Any] = {"class_weight": programs.WEIGHTS} if spec["class_weight"] else {}
    if "keras-order" in keys:
        data, steps = Ordered(programs.rows_of("train"), spec["batch"], steps), None
    elif "keras-limit" in keys and spec["train"] == "tf.data":
        data, steps = data.take(steps), None
    elif "keras-limit" in keys:
        data.length, steps = min(steps, data.length), None
    if "keras-order" in keys:
        words["shuffle"] = False
    arrays = spec["train"] == "arrays" and "keras-order" not in keys
    if arrays:
        words |= dict(zip(("x", "y", "sample_weight"), data, strict=False))
    history = model.fit(
        **(words if arrays else words | {"x": data}),
        epochs=spec["epochs"], steps_per_epoch=steps, batch_size=spec["batch"] if arrays else None, verbose=0,
        validation_data=val, validation_freq=freq, validation_steps=spec["val_steps"] if val is not None else None,
        validation_batch_size=spec["batch"] if spec["val"] == "arrays" else None, callbacks=[*callbacks, kept],
    ).history  # fmt: skip
    params = {k: v for c in callbacks if isinstance(c, programs.Recorder) for k, v in c.known.items()}
    result = {"history": history, "weights": kept.found, "steps": kept.steps, "params": params}
    if test is not None:
        x = (
            dict(zip(("x", "y", "sample_weight"), test, strict=False))
            if spec["test"] == "arrays"
            else {"x": test}
        )
        size = spec["batch"] if spec["test"] == "arrays" else None
        result["test"] = model.evaluate(
            **x, batch_size=size, verbose=0, return_dict=True, callbacks=list(callbacks)
        )
    return result | {"calls": [getattr(c, "calls", []) for c in callbacks]}


def overrides(spec: Spec, ranks: int) -> list[str]:
    """Return the command line of the program."""
    limit = spec["steps"]
    return [
        "framework=keras", "task=custom", "data=custom", f"task._target_={HERE}.make_model", f"data._target_={HERE}.open_data",
        "trainer.accelerator=cpu", f"trainer.max_epochs={spec['epochs']}", f"trainer.log_every_n_steps={spec['log']}",
        f"data.batch_size={spec['batch']}", f"trainer.check_val_every_n_epoch={spec['freq']}", f"seed={SEED}",
        "trainer.num_sanity_val_steps=0", "monitor.progress=none", "monitor.tensorboard=false", "schedule=constant",
        "schedule.warmup_epochs=0", *([f"trainer.limit_train_batches={limit}"] if limit else []),
        *([f"trainer.limit_val_batches={spec['val_steps']}"] if spec["val_steps"] else []),
        *(f"+callbacks.c{n}={{_target_: {HERE}.make_callback, number: {n}}}" for n in range(len(spec["callbacks"]))),
        *(["strategy=mirrored", f"trainer.devices={ranks}", "+task.ranks=true"] if ranks > 1 else []),
    ]  # fmt: skip


def run_ours(spec: Spec, folder: str, stop: int | None = None, ranks: int = 1) -> Result:
    """Return the engine's result of a new or resumed run. `stop` is a step."""
    programs.SPEC = spec
    words = overrides(spec, ranks)
    config = load(compose([*words, f"paths.results={folder}"]))
    found = sorted(Path(folder).glob("*/20*"))
    run = open_run(found[0]) if found else new_run(config, words, local_layout(config))
    flag, original = Stop(), TrainingCallback._end_step

    def stopping(self: TrainingCallback, steps: int, *arguments: Any) -> None:
        if stop and self.position.step < stop <= self.position.step + steps:
            flag.requested = "SIGUSR1"
        original(self, steps, *arguments)

    TrainingCallback._end_step = stopping  # type: ignore[method-assign]
    outcome = train(config, RankProcess(run, Topology(), flag, RunRecorder(run)))
    known = programs.MADE
    saved = {file.stem: dict(np.load(file)) for file in Path(str(outcome.checkpoint)).glob("*.npz")}
    weights = saved.get("raw", saved["weights"])
    params = {k: v for c in known if isinstance(c, programs.Recorder) for k, v in c.known.items()}
    return {
        "history": read_history(run.metrics_csv),
        "weights": {name: array.tobytes() for name, array in weights.items()},
        "arrays": weights,
        "saved": {
            f"{stem}/{k}": v.tobytes()
            for stem, arrays in saved.items()
            if stem != "metrics"
            for k, v in arrays.items()
        },
        "notes": run.read_info().get("notes", []),
        "steps": outcome.step,
        "state": outcome.state,
        "params": params,
        "test": {k.removeprefix("test/"): v for k, v in outcome.metrics.items() if k.startswith("test/")},
        "calls": [getattr(c, "calls", []) for c in known],
    }


def read_history(file: Path) -> dict[str, list[float]]:
    """Return the last value of each metric in each epoch by its name in Keras."""
    epochs: dict[str, dict[str, float]] = {}
    with open(file, newline="") as text:
        for row in csv.DictReader(text):
            values = {k: float(v) for k, v in row.items() if v and k.startswith(("train/", "val/"))}
            epochs.setdefault(row["epoch"], {}).update(values)
    history: dict[str, list[float]] = {}
    for values in epochs.values():
        for name, value in values.items():
            split, _, rest = name.partition("/")
            history.setdefault(f"val_{rest}" if split == "val" else rest, []).append(value)
    return history


def differences(alone: Result, ours: Result, spec: Spec) -> Iterator[str]:
    """Yield what differs: its kind, a colon and the two values."""
    if "error" in alone or "error" in ours:
        if ("error" in alone) != ("error" in ours):
            yield f"error: {alone.get('error')} | {ours.get('error')}"
        return
    if ours["notes"]:
        yield f"notes: none | {ours['notes']}"
    theirs = {k: v for k, v in alone["history"].items() if k != "learning_rate"}
    if theirs.keys() != ours["history"].keys():
        yield f"names in history: {sorted(theirs)} | {sorted(ours['history'])}"
    for name in theirs.keys() & ours["history"].keys():
        if not same(theirs[name], ours["history"][name], 1e-5):
            yield f"history of {'val_' * name.startswith('val_')}: {name} {theirs[name]} | {ours['history'][name]}"
    if alone["weights"] != ours["weights"]:
        wrong = [
            k
            for k in alone["weights"].keys() | ours["weights"].keys()
            if alone["weights"].get(k) != ours["weights"].get(k)
        ]
        yield f"weights: {wrong}"
    if not same(sorted(alone.get("test", {}).items()), sorted(ours["test"].items()), 1e-6):
        yield f"test: {alone.get('test')} | {ours['test']}"
    if alone["params"] != ours["params"]:
        yield f"params: {alone['params']} | {ours['params']}"
    if alone["steps"] != ours["steps"] and spec["optimizer"] != "accumulating":
        yield f"steps: {alone['steps']} | {ours['steps']}"
    yield from different_calls(alone["calls"], ours["calls"], 0.0)


def different_calls(alone: list[Any], ours: list[Any], tolerance: float) -> Iterator[str]:
    """Yield the first call of each callback that differs."""
    for one, other in zip(alone, ours, strict=True):
        names = [[call[:2] for call in calls] for calls in (one, other)]
        if names[0] != names[1]:
            n = next(
                (n for n, (a, b) in enumerate(zip(*names, strict=False)) if a != b), min(map(len, names))
            )
            yield f"order of hooks: {names[0][n : n + 3]} | {names[1][n : n + 3]}"
            continue
        for a, b in zip(one, other, strict=True):
            if not same(sorted(a[2].items()), sorted(b[2].items()), tolerance):
                yield f"logs of {a[0]}: {a} | {b}"
                break
            if a[3] != b[3]:
                yield f"iterations in {a[0]}: {a} | {b}"
                break


def items(value: Any) -> Any:
    """Return the sorted items of a dict, and anything else as it is."""
    return sorted(value.items()) if isinstance(value, dict) else value


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two structures of numbers are equal. NaN is equal to NaN."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= tolerance * max(1e-3, abs(one)) or (one != one and other != other)
    return bool(one == other)


def compare(spec: Spec, keys: set[str] | None = None) -> list[str]:
    """Return the differences of the program on one rank."""
    alone = fork(run_alone, spec, translations(spec) if keys is None else keys)
    if "error" in alone:
        return [f"invalid: {alone['error']}"]
    with tempfile.TemporaryDirectory() as folder:
        return list(differences(alone, fork(run_ours, spec, folder), spec))


def compare_stop(spec: Spec, ranks: int = 1) -> list[str]:
    """Return how a stopped and resumed run differs from one that never stopped.

    Of several devices, a checkpoint holds the sums of their metrics, which are rounded in another order.
    """
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        expected = fork(run_ours, spec, whole, None, ranks)
        if "error" in expected or expected["steps"] < 2:
            return []
        stop = 1 + int((spec["stop"] or 0.3) * (expected["steps"] - 1))
        first = fork(run_ours, spec, parts, stop, ranks)
        if first.get("state") != "preempted":
            return [f"stop: {first.get('error', first.get('state'))}"]
        shutil.rmtree(Path(parts) / "latest", ignore_errors=True)
        found = fork(run_ours, spec, parts, None, ranks)
        if "error" in found:
            return [f"resume: {found['error']}"]
        wrong = [k for k, v in expected["saved"].items() if found["saved"].get(k) != v]
        kinds = [f"resumed weights: {wrong}"] if wrong else []
        kinds += [
            f"resumed {k}: {expected[k]} | {found[k]}"
            for k in ("history", "test", "steps", "notes")
            if not same(items(expected[k]), items(found[k]), 1e-5 if ranks > 1 else 0.0)
        ]
        return [
            *kinds,
            *(f"resumed {line}" for line in different_calls(expected["calls"], found["calls"], 0.0)),
        ]


def for_ranks(spec: Spec) -> Spec:
    """Return the program without what depends on the number of devices by its nature."""
    ranks = {
        "train": "arrays",
        "layers": [n for n in spec["layers"] if n == "regularizer"],
        "rows": 12,
        "batch": 4,
        "eager": False,
    }
    arrays = {split: spec[split] and "arrays" for split in ("val", "test")}
    ranks |= {"optimizer": "adam"} if spec["optimizer"] == "accumulating" else {}
    if {"train_step", "test_step"} & {*spec["own"]} and spec["returns"] != "metrics":
        arrays, ranks = (
            arrays | {"test": None},
            ranks | {"val_steps": spec["val"] and 1},
        )  # means over devices: whole batches
    return (
        spec
        | ranks
        | {"form": "rows", "shuffled": False, "calls": 1}
        | arrays
        | {"callbacks": [c for c in spec["callbacks"] if c["kind"] != "recorder"], "weights": False}
    )


def compare_ranks(spec: Spec) -> list[str]:
    """Return how two devices differ from one."""
    found = []
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            found.append(
                fork(run_ours, spec, folder, None, ranks) if ranks > 1 else fork(one_device, spec, folder)
            )
    one, two = found
    if "error" in one or "error" in two:
        return [] if "error" in one else [f"error on ranks: {two['error']}"]
    lines = [
        f"{key} on ranks: {one[key]} | {two[key]}"
        for key in ("history", "test")
        if not same(sorted(one[key].items()), sorted(two[key].items()), 1e-3)
    ]
    far = [
        k
        for k, v in one["arrays"].items()
        if v.dtype.kind == "f" and not np.allclose(v, two["arrays"][k], atol=1e-4)
    ]
    return lines + ([f"weights on ranks: {far}"] if far else [])


def one_device(spec: Spec, folder: str) -> Result:
    """Return the result of a single device with the model of several."""
    programs.make_model.__defaults__ = (True,)
    return run_ours(spec, folder)

"""Random programs as plain dicts, drawn from a seed."""

import random
from collections import Counter
from typing import Any

Spec = dict[str, Any]

HOOKS = [
    f"on_{where}_{when}" for where in ("train", "epoch", "test", "train_batch", "test_batch", "batch") for when in ("begin", "end")
]  # fmt: skip
STATES = ("number", "list", "deque", "dict", "set", "generator", "array", "object")
"""State in an attribute that no file of Keras holds."""

RETURNS = ("metrics", "renamed", "nested", "raw", "same names", "mixed")


def draw(seed: int) -> Spec:
    """Return the program of a seed."""
    r = random.Random(seed)
    share = r.choice((0, 0.35, 0.35))
    own = [
        name
        for name in ("train_step", "test_step", "compute_loss", "add_loss", "compile")
        if r.random() < share
    ]
    model = "subclass" if {*own} - {"add_loss"} else r.choice(("functional", "subclass"))
    kinds = ("arrays", "tf.data", "PyDataset", "generator")
    evaluated = (None, "arrays", "tf.data", "PyDataset")
    rows, batch = r.choice((8, 10, 12, 13)), r.choice((3, 4))
    spec = {
        "model": model,
        "layers": [name for name in ("dropout", "batch norm", "regularizer") if r.random() < 0.3],
        "loss": r.choice(("mse", "mae", "huber")),
        "metrics": r.sample(["mae", "rmse", "function"], r.randint(0, 2)),
        "weighted": r.sample(["mse"], r.randint(0, 1)),
        "own": own,
        "returns": r.choice(RETURNS),
        "optimizer": r.choice(("sgd", "momentum", "adam", "scheduled", "clipped", "accumulating", "averaging")),
        "eager": r.random() < 0.15,
        "train": r.choice(kinds),
        "val": r.choice(evaluated),
        "test": r.choice(evaluated),
        "rows": rows,
        "batch": batch,
        "weights": r.random() < 0.3,
        "class_weight": r.random() < 0.15,
        "epochs": r.randint(1, 3),
        "freq": r.choice((1, 1, 2)),
        "steps": r.choice((None, None, 2)),
        "val_steps": r.choice((None, None, 1)),
        "log": r.choice((1, 2, 50)),
        "callbacks": [draw_callback(r) for _ in range(r.randint(0, 2))],
        "stop": r.random(),
    }  # fmt: skip
    spec |= {
        "form": ("sequences", "masked", "dict", "two outputs")[seed // 5 % 4],
        "shuffled": r.random() < 0.5,
        "calls": r.choice((1, 3)),
    }
    if "train_step" in own and "test_step" not in own and spec["returns"] != "metrics":
        spec["own"] = [*own, "test_step"]
    if spec["train"] == "generator" and not spec["steps"]:
        spec["steps"] = 3
    if seed % 2:  # not drawn, so that each kind is as frequent and the other draws stay the same
        state = [STATES[seed // 2 % len(STATES)], ("callback", "model")[seed // 32 % 2]]
        spec["callbacks"].append({"kind": "state", "hooks": [], "stops": None, "adds": False, "state": state})
    return valid(spec)


def draw_callback(r: random.Random) -> Spec:
    """Return a callback: a recorder with any subset of the hooks, or one of Keras."""
    kind = r.choice(("recorder",) * 6 + ("rate", "plateau", "stopping"))
    if kind != "recorder":
        return {"kind": kind, "hooks": [], "stops": None, "adds": False}
    hooks = [name for name in HOOKS if r.random() < 0.5]
    stops = [
        r.choice(["on_train_batch_end", "on_epoch_end", "on_epoch_begin", "on_test_end"]),
        r.randint(1, 4),
    ]
    return {
        "kind": kind,
        "hooks": hooks,
        "stops": stops if r.random() < 0.25 else None,
        "adds": r.random() < 0.2,
    }


def valid(spec: Spec) -> Spec:
    """Return the program with entries changed that Keras itself refuses together."""
    if spec["class_weight"]:
        spec = spec | {"weights": False, "loss": "mse", "train": "arrays"}
    if {"train_step", "test_step"} & {*spec["own"]} and spec["returns"] != "metrics":
        spec = spec | {
            "metrics": [],
            "weighted": [],
        }  # Keras does not report metrics that a step does not build
    if spec["optimizer"] == "scheduled" and any(c["kind"] in ("rate", "plateau") for c in spec["callbacks"]):
        spec = spec | {"optimizer": "adam"}
    if {*spec["own"]} - {"add_loss"} or spec["model"] != "functional":
        spec = spec | {"form": "rows"}
    if spec["form"] in ("dict", "two outputs"):
        kinds = {split: spec[split] and "tf.data" for split in ("train", "val", "test")}
        spec = spec | kinds | {"metrics": [], "weighted": [], "weights": False, "class_weight": False}
    if spec["train"] not in ("tf.data", "PyDataset") or spec["steps"] or spec["val_steps"]:
        spec = spec | {"calls": 1}  # plain Keras makes more steps than these
    if spec["train"] != "tf.data":
        spec = spec | {"shuffled": False}
    if spec["own"] == ["compile"] and spec["model"] == "functional":
        spec = spec | {"own": []}
    if not any(c["kind"] in ("plateau", "stopping") for c in spec["callbacks"]) and spec["val"] is None:
        spec = spec | {"freq": 1, "val_steps": None}
    return spec


def count_draws(spec: Spec, counts: Counter[str]) -> None:
    """Count each feature of a program that is not the plain one."""
    for key, value in spec.items():
        if key in ("stop", "callbacks"):
            continue
        for one in value if isinstance(value, list) else [value]:
            counts[f"{key}={one}"] += 1
    for callback in spec["callbacks"]:
        counts[f"callback={callback['kind']}"] += 1
        counts.update(callback["hooks"])
        counts.update(f"state={one}" for one in callback.get("state", ()))
        counts["callback stops"] += callback["stops"] is not None
        counts["callback adds"] += callback["adds"]

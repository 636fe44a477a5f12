"""The metrics to monitor, by default those that the task names, and their mode."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from train_anywhere.config.choices import Task
from train_anywhere.config.schema import Checkpoint, Config, Mode
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import listed

LESS = (
    "loss", "error", "err", "mae", "mse", "rmse", "msle", "rmsle", "mape", "smape", "nll", "bpb", "bpc", "perplexity", "ppl",
    "hinge", "divergence", "kld", "kl", "distance", "wer", "cer", "mer", "ter", "ece", "fid", "kid", "lpips", "epe", "hausdorff",
    "fpr", "fnr", "regret", "cost",
)  # fmt: skip
"""Words in the names of metrics of which less is better."""

MORE = (
    "accuracy", "acc", "auc", "auroc", "auprc", "aupr", "ap", "map", "mrr", "ndcg", "f1", "f2", "fbeta", "precision", "recall",
    "sensitivity", "specificity", "tpr", "tnr", "iou", "miou", "dice", "jaccard", "bleu", "chrf", "rouge", "meteor", "cider",
    "psnr", "ssim", "r2", "mcc", "matthews", "kappa", "pearson", "spearman", "correlation", "similarity", "reward", "return",
)  # fmt: skip
"""Words in the names of metrics of which more is better."""


def from_keras_name(name: str) -> str:
    """Return val/loss for Keras' val_loss, train/loss for loss. Other names stay."""
    if name.startswith(("train/", "val/", "test/")):
        return name
    return f"val/{name.removeprefix('val_')}" if name.startswith("val_") else f"train/{name}"


def infer_mode(monitor: str) -> Mode | None:
    """Return "min" or "max" by the words in the name of a metric. None if none is known."""
    for part in reversed(re.split(r"[^A-Za-z0-9]+", monitor)):
        pieces = re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*(?![a-z])", part)
        for word in (part.lower(), *(piece.lower() for piece in reversed(pieces))):
            if word in LESS or word.endswith(("loss", "error")):
                return "min"
            if word in MORE or word.endswith(("accuracy", "acc", "auc", "iou")):
                return "max"
    return "min" if re.search("loss|cross_?entropy", monitor.lower()) else None


def fill_monitors(config: Config, problems: list[str]) -> Config:
    """Return the configuration with each monitor and mode that can be inferred.

    `problems` receives a sentence for each metric that the task does not name, and for each one whose mode is unknown.
    """
    task, checkpoint, stopping = config.task, config.checkpoint, config.trainer.early_stopping
    if config.program:  # its metrics are known when it logs them
        mode = _find_mode({}, "checkpoint", checkpoint.monitor, checkpoint.mode, problems)
        return replace(config, checkpoint=replace(checkpoint, mode=mode))
    known, keras = _known(task.monitors), config.framework == "keras"
    best = _own_name(known, keras, checkpoint.monitor) or next((f"val/{one}" for one in task.monitors), None)
    watched = _own_name(known, keras, stopping.monitor) or ("val/loss" if "loss" in task.monitors else None)
    if stopping.patience is not None and watched is None:
        problems.append(
            f"trainer.early_stopping.patience={stopping.patience} needs a metric to monitor, and those of this task are unknown before "
            f"it runs; use trainer.early_stopping.monitor={checkpoint.monitor or 'NAME'}."
        )
    early_mode = _find_mode(task.monitors, "trainer.early_stopping", watched, stopping.mode, problems)
    best_mode = _find_mode(task.monitors, "checkpoint", best, checkpoint.mode, problems)
    early = replace(stopping, monitor=watched, mode=early_mode)
    return replace(
        config,
        checkpoint=replace(checkpoint, monitor=best, mode=best_mode),
        trainer=replace(config.trainer, early_stopping=early),
    )


def _known(metrics: Mapping[str, Mode]) -> list[str]:
    return [f"{part}/{name}" for part in ("train", "val") for name in metrics]


def _own_name(known: Sequence[str], keras: bool, monitor: str | None) -> str | None:
    """Return the monitor by its name here, if it has that of Keras."""
    own = from_keras_name(monitor) if monitor else None
    return own if own in known or (keras and not known) else monitor


def _find_mode(
    metrics: Mapping[str, Mode], section: str, monitor: str | None, mode: Mode | None, problems: list[str]
) -> Mode | None:
    if monitor is None:
        return mode
    known = _known(metrics)
    if metrics and monitor not in known:
        near = did_you_mean(monitor, known) if len(known) > 12 else ""
        problems.append(
            f"{section}.monitor={monitor} is not a known metric; use one of {listed(known)}.{near}"
        )
        return mode
    if mode or metrics:
        return mode or metrics[monitor.partition("/")[2]]
    if found := infer_mode(monitor):
        return found
    problems.append(
        f"{section}.monitor={monitor} may be better high or low, and its name does not show it; "
        f"add {section}.mode=max or {section}.mode=min."
    )
    return None


def describe_best_checkpoint(task: Task, checkpoint: Checkpoint) -> str:
    """Return the line about the best checkpoint's metric. "" if the task names its metrics."""
    if task.monitors or checkpoint.monitor is None:
        return ""
    order = "greatest" if checkpoint.mode == "max" else "least"
    return f"the best checkpoint has the {order} {checkpoint.monitor} (checkpoint.mode={checkpoint.mode})"

"""Infer from the name of a metric whether less or more of it is better."""

import re
from typing import Literal

Mode = Literal["min", "max"]

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


SPLITS = ("train/", "val/", "test/")
"""How the names of metrics start here."""


def from_keras_name(name: str) -> str:
    """Return the name of a metric for that of Keras: val/loss for val_loss, train/loss for loss; a name of ours as it is."""
    rest = name.removeprefix("val_")
    return name if name.startswith(SPLITS) else f"{'train' if rest == name else 'val'}/{rest}"


def infer_mode(monitor: str) -> Mode | None:
    """Return "min" or "max" by the last word in the name of a metric that is in `LESS` or `MORE`; None if no word is."""
    for part in reversed(re.split(r"[^A-Za-z0-9]+", monitor)):
        pieces = re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*(?![a-z])", part)
        for word in (part.lower(), *(piece.lower() for piece in reversed(pieces))):
            if word in LESS or word.endswith(("loss", "error")):
                return "min"
            if word in MORE or word.endswith(("accuracy", "acc", "auc", "iou")):
                return "max"
    return "min" if re.search("loss|cross_?entropy", monitor.lower()) else None

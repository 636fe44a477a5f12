"""Names that users give to metrics, and whether less or more of such a metric is better."""

import re
from typing import Literal

Mode = Literal["min", "max"]

LESS = (
    "loss", "error", "err", "mae", "mse", "rmse", "msle", "rmsle", "mape", "smape", "nll", "bpb", "bpc", "perplexity", "ppl",
    "hinge", "divergence", "kld", "kl", "distance", "wer", "cer", "mer", "ter", "ece", "fid", "kid", "lpips", "epe", "hausdorff",
    "fpr", "fnr", "regret", "cost",
)  # fmt: skip
"""Words of metrics that are better when they are less."""

MORE = (
    "accuracy", "acc", "auc", "auroc", "auprc", "aupr", "ap", "map", "mrr", "ndcg", "f1", "f2", "fbeta", "precision", "recall",
    "sensitivity", "specificity", "tpr", "tnr", "iou", "miou", "dice", "jaccard", "bleu", "chrf", "rouge", "meteor", "cider",
    "psnr", "ssim", "r2", "mcc", "matthews", "kappa", "pearson", "spearman", "correlation", "similarity", "reward", "return",
)  # fmt: skip
"""Words of metrics that are better when they are more."""


def better(monitor: str) -> Mode | None:
    """Return whether less or more of a metric is better, by the last word of its name that says so; None if none does."""
    for part in reversed(re.split(r"[^A-Za-z0-9]+", monitor)):
        pieces = re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*(?![a-z])", part)
        for word in (part.lower(), *(piece.lower() for piece in reversed(pieces))):
            if word in LESS or word.endswith(("loss", "error")):
                return "min"
            if word in MORE or word.endswith(("accuracy", "acc", "auc", "iou")):
                return "max"
    return "min" if re.search("loss|cross_?entropy", monitor.lower()) else None

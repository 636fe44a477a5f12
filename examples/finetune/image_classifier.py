r"""A ConvNeXt of timm on handwritten digits: its head is trained first, its backbone from the third epoch on.

    python src/train.py name=images model._target_=examples.finetune.image_classifier.frozen_convnext \
        'model.from_data={num_classes: outputs}' callbacks.thaw._target_=examples.finetune.image_classifier.Thaw \
        'optimizer.groups=[{match: "(?!head[.]fc).*", lr: 5e-4}]' trainer.max_epochs=8

The backbone has a smaller learning rate than the head. `python src/evaluate.py RUN --export safetensors --to convnext.safetensors` writes a
file that timm reads: `timm.create_model(checkpoint_path="convnext.safetensors", **ARCHITECTURE)`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import timm
import torch
from torch import nn
from torch.nn import functional

ARCHITECTURE: dict[str, Any] = {
    "model_name": "test_convnext",
    "patch_size": 1,
    "in_chans": 1,
    "num_classes": 10,
}
"""Arguments of `timm.create_model` for images of 8x8 pixels."""

DIGITS = Path(__file__).parents[2] / "src/data/digits.npz"
WEIGHTS = Path(__file__).parents[2] / "data/finetune/convnext.pt"
"""The weights of the backbone, in place of `pretrained=True`."""


def pretrain() -> None:
    """Train the backbone to tell apart digits that are turned by 0, 90, 180 or 270 degrees, and write its weights once."""
    torch.manual_seed(1)
    model = timm.create_model(**{**ARCHITECTURE, "num_classes": 4})
    images = torch.from_numpy(np.load(DIGITS)["images"][:800, None] / 16).float()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(120):
        batch, turns = images[torch.randint(800, (64,))], torch.randint(4, (64,))
        turned = torch.stack([torch.rot90(i, int(k), (1, 2)) for i, k in zip(batch, turns, strict=True)])
        optimizer.zero_grad()
        functional.cross_entropy(model(turned), turns).backward()
        optimizer.step()
    WEIGHTS.parent.mkdir(parents=True, exist_ok=True)
    made = WEIGHTS.with_suffix(f".{os.getpid()}")
    torch.save({n: t for n, t in model.state_dict().items() if not n.startswith("head.fc.")}, made)
    with suppress(FileExistsError):
        os.link(made, WEIGHTS)  # the first rank that comes here writes the file
    made.unlink()


def frozen_convnext(num_classes: int) -> nn.Module:
    """Return the network with a new head; the backbone is frozen."""
    if not WEIGHTS.exists():
        with torch.random.fork_rng():
            pretrain()
    model: nn.Module = timm.create_model(**{**ARCHITECTURE, "num_classes": num_classes})
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True), strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head.fc."))
    return model


class Thaw(pl.Callback):
    """Train all weights from an epoch on, which counts from 0."""

    def __init__(self, epoch: int = 2) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Unfreeze the backbone, whose learning rate is that of its group."""
        if trainer.current_epoch >= self.epoch:
            pl_module.requires_grad_(True)

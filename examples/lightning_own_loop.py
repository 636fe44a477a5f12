"""A loop in plain PyTorch in place of `run.fit`, here or in a job, on one process or several.

    python src/train.py train=examples.lightning_own_loop.train model=mlp

The calls of `run` are explained in docs/how-to/own-loop.md.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from train_anywhere.training.order import Training


def train(run: "Training") -> None:
    """Train the network of `model=` for 60 steps, and test it."""
    trainer = run.make_trainer()
    data = run.open_data()
    model = run.make_model(data)
    model.to(trainer.strategy.root_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if run.newest:  # the folder of the newest checkpoint of this run
        state = torch.load(run.newest / "state.pt", map_location=trainer.strategy.root_device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    network = DistributedDataParallel(model) if trainer.world_size > 1 else model
    for step, batch in zip(run.steps(60, save, every=20), run.batches(), strict=False):
        torch.manual_seed(step)  # dropout draws the same numbers in a run that is resumed
        images, labels = (tensor.to(trainer.strategy.root_device) for tensor in batch)
        loss = cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            run.log(step, {"train/loss": loss})
    run.test(trainer, model, data)

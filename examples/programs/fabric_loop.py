"""A loop with Lightning Fabric, which reads the ranks from the environment; checkpoints by `fabric.save` and `fabric.load`.

python src/run.py trainer.devices=2 trainer.accelerator=cpu -- examples/programs/fabric_loop.py
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment

from train_anywhere.program import log

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")


def main() -> None:
    """Fit a line, with a checkpoint every 5 steps."""
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    each = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        devices=each,
        num_nodes=world // each,
        strategy="ddp" if world > 1 else "auto",
        plugins=[TorchElasticEnvironment()] if world > 1 else [],
    )
    fabric.launch()
    fabric.seed_everything(1)
    network = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    saved = Path(os.environ.get("TRAIN_PERSISTENT_CHECKPOINTS", "."), "fabric.ckpt")
    if saved.exists():
        fabric.load(saved, state)
    print(f"rank {fabric.global_rank} starts at step {state['step']}", flush=True)
    while state["step"] < options.max_steps:
        generator = torch.Generator().manual_seed(1000 * state["step"] + fabric.global_rank)
        x = torch.rand(16, 1, generator=generator).to(fabric.device)
        loss = torch.nn.functional.mse_loss(model(x), 2 * x + 1)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        state["step"] += 1
        time.sleep(options.pause)
        log(state["step"], loss=loss)
        if state["step"] % 5 == 0:
            folder = Path(os.environ.get("TRAIN_LOCAL_CHECKPOINTS", "."))
            fabric.save(folder / "new", state)
            if fabric.global_rank == 0:
                os.replace(folder / "new", folder / "fabric.ckpt")
            fabric.barrier()
    weight = network.weight.item()
    print(f"rank {fabric.global_rank}: weight {weight:.6f} after {state['step']} steps", flush=True)


if __name__ == "__main__":
    main()

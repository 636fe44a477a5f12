"""A loop with Hugging Face's accelerate, in ranks of the job or by `accelerate launch`: `pip install accelerate`.

python src/run.py trainer.devices=2 trainer.accelerator=cpu -- examples/programs/accelerate_loop.py
python src/run.py trainer.devices=2 -- accelerate launch --num_processes=2 examples/programs/accelerate_loop.py
"""

import argparse
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from train_anywhere.program import log

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")


def main() -> None:
    """Fit a line, with a checkpoint every 5 steps."""
    options = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rank = accelerator.process_index
    torch.manual_seed(1)
    network = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))
    saved = Path(os.environ.get("TRAIN_PERSISTENT_CHECKPOINTS", "out"))
    steps = [
        int(path.name.removeprefix("step-")) for path in saved.glob("step-*") if path.name[5:].isdecimal()
    ]
    step = max(steps, default=0)
    if step:
        accelerator.load_state(saved / f"step-{step}")
    print(f"rank {rank} starts at step {step}", flush=True)
    while step < options.max_steps:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.rand(16, 1, generator=generator).to(accelerator.device)
        loss = torch.nn.functional.mse_loss(model(x), 2 * x + 1)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        time.sleep(options.pause)
        log(step, loss=loss)
        if step % 5 == 0:
            folder = Path(os.environ.get("TRAIN_LOCAL_CHECKPOINTS", "out"))
            accelerator.save_state(folder / "new")
            accelerator.wait_for_everyone()
            if rank == 0:
                os.replace(folder / "new", folder / f"step-{step}")
            accelerator.wait_for_everyone()
    print(f"rank {rank}: weight {network.weight.item():.6f} after {step} steps", flush=True)


if __name__ == "__main__":
    main()

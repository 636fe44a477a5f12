"""Hugging Face's Trainer with a tiny GPT-2 and random tokens: `pip install transformers accelerate`.

python src/run.py trainer.devices=2 trainer.accelerator=cpu -- examples/programs/hf_trainer.py
"""

import argparse
import os
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from train_anywhere.program import log

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")


class Report(TrainerCallback):  # type: ignore[misc]
    """Pass on what the Trainer logs."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Make a step slower."""
        time.sleep(self.pause)

    def on_log(self, _: Any, state: Any, __: Any, logs: Any = None, **___: Any) -> None:
        """Log the numbers of a step."""
        log(state.global_step, **{k: v for k, v in (logs or {}).items() if isinstance(v, int | float)})


def main() -> None:
    """Train on random tokens, from the newest checkpoint if there is one."""
    options = parser.parse_args()
    torch.manual_seed(1)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (256, 16))]
    arguments = TrainingArguments(
        output_dir=os.environ.get("TRAIN_LOCAL_CHECKPOINTS", "out"),
        max_steps=options.max_steps,
        per_device_train_batch_size=8,
        save_steps=5,
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Report(options.pause)])
    saved = os.environ.get("TRAIN_PERSISTENT_CHECKPOINTS", "out")
    newest = get_last_checkpoint(saved) if os.path.isdir(saved) else None
    rank = arguments.process_index
    print(f"rank {rank} starts at step {newest.rpartition('-')[2] if newest else 0}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    weight = model.transformer.wte.weight.double().abs().sum().item()
    print(f"rank {rank}: weight {weight:.6f} after {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()

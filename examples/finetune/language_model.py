r"""A causal language model of transformers, with adapters (LoRA), on text of your own: the pages of docs/.

    python src/train.py name=language task._target_=examples.finetune.language_model.Llama \
        data._target_=examples.finetune.language_model.open_text checkpoint.monitor=val_loss checkpoint.mode=min \
        'model.lora={rank: 8, alpha: 16, targets: [q_proj, v_proj, up_proj, down_proj], train: [lm_head]}' \
        optimizer.lr=0.005 trainer.max_epochs=4

`data.pattern='my/*.txt'` names other files. `python src/evaluate.py RUN --export safetensors` merges the adapters, `--export peft`
writes only them. `AutoModelForCausalLM.from_pretrained(NAME)` takes the place of `tiny_llama` for a model of the hub.
"""

from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[2]


def tiny_llama() -> LlamaForCausalLM:
    """Return a Llama of 140,000 weights for bytes, the same in each run, in place of one of the hub."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, **heads}
        return LlamaForCausalLM(LlamaConfig(max_position_embeddings=128, **sizes))


def open_text(pattern: str = "docs/how-to/*.md", length: int = 64) -> dict[str, TensorDataset]:
    """Return the bytes of files in pieces of the same length; every tenth piece validates."""
    text = b"".join(path.read_bytes() for path in sorted(ROOT.glob(pattern)))
    pieces = len(text) // length
    rows = torch.tensor(list(text[: pieces * length])).view(pieces, length)
    tenth = torch.arange(pieces) % 10 == 0
    return {"train": TensorDataset(rows[~tenth]), "val": TensorDataset(rows[tenth])}


class Llama(pl.LightningModule):
    """The model with its loss, in nats per byte."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [b, length, 256] of bytes [b, length]."""
        return self.model(input_ids=tokens).logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss = self.model(input_ids=batch[0], labels=batch[0]).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.model(input_ids=batch[0], labels=batch[0]).loss)

"""Language modelling: predict each token from those before it in its document."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric

Batch = Mapping[str, Tensor]
IGNORED = -100
"""The target of a position that does not count: the number that torch uses for it."""


class LanguageModel(pl.LightningModule):
    """A network for rows of tokens, in which each predicted token has the same weight.

    Batches are {"tokens": [b, t + 1], "documents": [b, t + 1], "bytes": float32 [b]}, as data=text has them: documents are
    numbered within a row, and -1 is padding; bytes are those of a row's targets in UTF-8.

    Args:
        network: maps tokens [b, t] and documents [b, t] or None, for one document in each row, to logits [b, t, vocabulary].
        make_optimizer: maps the network to what `configure_optimizers` may return, such as an optimizer of its parameters.
    """

    def __init__(self, network: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.network, self.make_optimizer = network, make_optimizer
        self.nats_per_token, self.nats_per_byte = MeanMetric(), MeanMetric()

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Split rows into tokens and their targets, the tokens that follow them.

        Documents are left out if each row has one, because attention is faster without a mask. Padding needs none: no token
        sees later ones.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        rows = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:].long().masked_fill(~counts, IGNORED)}
        several = bool((documents[:, :-1].diff(dim=1) > 0).any())
        return rows | {"bytes": batch["bytes"]} | ({"documents": documents[:, :-1]} if several else {})

    def forward(self, batch: Batch) -> Tensor:
        """Map a batch of `on_before_batch_transfer` to logits [b, t, vocabulary]."""
        return self.network(batch["tokens"], batch.get("documents"))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum over targets divided by the positions, whose number is fixed."""
        nats, tokens, size = self._measure(batch)
        loss, bits = nats.detach() / tokens, nats.detach() / size.clamp(min=1) / math.log(2)
        self._log("train", loss, bits, len(batch["tokens"]))
        return nats / batch["targets"].numel()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add the sums of a batch."""
        nats, tokens, size = self._measure(batch)
        self.nats_per_token.update(nats / tokens, tokens)
        self.nats_per_byte.update(nats / size.clamp(min=1), size)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of all batches and ranks."""
        self._log_epoch("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all batches and ranks."""
        self._log_epoch("test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the logits [b, t, vocabulary]."""
        return self(batch)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and its schedule if it has one."""
        return self.make_optimizer(self.network)

    @torch.no_grad()
    def generate(
        self, prompt: Sequence[int], count: int, temperature: float = 1.0, seed: int = 0
    ) -> list[int]:
        """Return the prompt and `count` sampled tokens, the most probable at temperature 0."""
        tokens, random = list(prompt), torch.Generator().manual_seed(seed)
        for _ in range(count):
            seen = torch.tensor([tokens[-self.network.length :]], device=self.device)
            logits = self.network(seen)[0, -1].float().cpu()
            odds = (logits / temperature).softmax(0) if temperature > 0 else None
            drawn = logits.argmax() if odds is None else torch.multinomial(odds, 1, generator=random)
            tokens.append(int(drawn))
        return tokens

    def _measure(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of the losses in nats, and the numbers of targets and bytes."""
        logits, targets = self(batch), batch["targets"]
        flat = logits.float().flatten(0, 1)
        nats = functional.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return nats, (targets != IGNORED).sum().clamp(min=1), batch["bytes"].sum()

    def _log_epoch(self, part: str) -> None:
        loss, nats_per_byte = self.nats_per_token.compute(), self.nats_per_byte.compute()
        self.nats_per_token.reset()
        self.nats_per_byte.reset()
        self._log(part, loss, nats_per_byte / math.log(2), 1)

    def _log(self, part: str, loss: Tensor, bits: Tensor, rows: int) -> None:
        metrics = {"loss": loss, "perplexity": loss.exp(), "bits_per_byte": bits}
        self.log_dict({f"{part}/{name}": value for name, value in metrics.items()}, batch_size=rows)

"""Language modelling with torch."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.tasks import language_model as neutral


class LanguageModel(neutral.LanguageModel):
    """Batches are {"tokens": [b, t + 1], "documents": [b, t + 1], "bytes": [b]}, see `neutral.shifted`."""

    def prepare(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Tokens and targets; documents only where a row has several, for attention is faster without them.

        Padding at the end of a row needs no mask: no token sees what comes after it.
        """
        rows = neutral.shifted(batch)
        if (np.diff(rows["documents"], axis=1) <= 0).all():
            del rows["documents"]
        return rows | {"targets": rows["targets"].astype(np.int64)}

    def step(
        self, network: nn.Module, batch: Mapping[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of each row's targets [b], and the sums by `self.sums`, float32 [3]; rows of weight 0 are padding.

        Args:
            network: tokens and documents [b, t], or tokens alone, to logits [b, t, vocabulary].
            weight: of each row, by its number of targets, float32 [b].
        """
        targets = batch["targets"]
        logits = network(batch["tokens"], batch.get("documents"))
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1),
            targets.flatten(),
            ignore_index=neutral.IGNORED,
            reduction="none",
        )
        nats = losses.view_as(targets).sum(1)
        counted = (targets != neutral.IGNORED).sum(1).float()
        real = (weight > 0).float()
        sums = torch.stack([(row.detach() * real).sum() for row in (nats, counted, batch["bytes"])])
        return nats / counted.clamp(min=1), sums

    @torch.no_grad()
    def generate(
        self, network: nn.Module, prompt: Sequence[int], count: int, temperature: float, seed: int
    ) -> list[int]:
        """The prompt, of at least one token, and `count` tokens more; see `neutral.continued`."""
        device = next(network.parameters()).device

        def predict(tokens: list[int]) -> np.ndarray:
            seen = torch.tensor([tokens[-network.length :]], device=device)
            return np.asarray(network(seen)[0, -1].float().cpu())

        return neutral.continued(predict, prompt, count, temperature, seed)

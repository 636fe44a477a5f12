"""Language modelling in torch."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.tasks import language_model


class LanguageModel(language_model.LanguageModel):
    """Batches are {"tokens": [b, t + 1], "documents": [b, t + 1], "bytes": [b]}; see `split_targets`."""

    def prepare(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return tokens and targets, and documents only if a row has several: attention is faster without them.

        Padding at the end of a row needs no mask, because no token sees later ones. Runs where batches are loaded.
        """
        rows = language_model.split_targets(batch)
        if (np.diff(rows["documents"], axis=1) <= 0).all():
            del rows["documents"]
        return rows | {"targets": rows["targets"].astype(np.int64)}

    def step(
        self, network: nn.Module, batch: Mapping[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of each row's targets [b], and the sums of the batch, float32 [3].

        The network maps tokens [b, t], with or without documents [b, t], to logits [b, t, vocabulary].
        `weight` float32 [b] is proportional to a row's number of targets, and 0 for padding.
        """
        targets = batch["targets"]
        logits = network(batch["tokens"], batch.get("documents"))
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1),
            targets.flatten(),
            ignore_index=language_model.IGNORED,
            reduction="none",
        )
        nats = losses.view_as(targets).sum(1)
        counted = (targets != language_model.IGNORED).sum(1).float()
        real = (weight > 0).float()
        sums = torch.stack([(row.detach() * real).sum() for row in (nats, counted, batch["bytes"])])
        return nats / counted.clamp(min=1), sums

    @torch.no_grad()
    def generate(
        self, network: nn.Module, prompt: Sequence[int], count: int, temperature: float, seed: int
    ) -> list[int]:
        """Return the prompt, of at least one token, and `count` sampled tokens; see `sample_tokens`."""
        device = next(network.parameters()).device

        def predict(tokens: list[int]) -> np.ndarray:
            seen = torch.tensor([tokens[-network.length :]], device=device)
            return np.asarray(network(seen)[0, -1].float().cpu())

        return language_model.sample_tokens(predict, prompt, count, temperature, seed)

"""Language modelling: targets, the loss on any number of ranks, and generation."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from src.models.lightning.gpt import GPT
from src.tasks.lightning.language_model import IGNORED, LanguageModel
from tests.tasks.sentences import VOCABULARY, open_sentences

DATA = open_sentences().train


def network() -> GPT:
    torch.manual_seed(0)
    return GPT(VOCABULARY, 12, 2, 2, 1, 16, None, False)


def make_task(network: nn.Module) -> Any:
    """Return the task without a Trainer, with its metrics in `logged`."""
    task: Any = LanguageModel(network, lambda network: None)
    task.logged = {}
    task.log_dict = lambda metrics, **named: task.logged.update(metrics)
    return task


def rows_of(numbers: range) -> dict[str, Tensor]:
    """Return a batch of the data set."""
    rows = DATA.read(np.arange(numbers.start, numbers.stop), 0, True)
    return {name: torch.from_numpy(value) for name, value in rows.items()}


def test_a_target_is_the_next_token_of_the_same_document() -> None:
    batch = {
        "tokens": torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 0, 0]]),
        "documents": torch.tensor([[0, 0, 1, 1, 2], [0, 0, 0, -1, -1]]),
        "bytes": torch.tensor([2.0, 2.0]),
    }
    rows = make_task(network()).on_before_batch_transfer(batch, 0)
    assert rows["tokens"].tolist() == [[5, 6, 7, 8], [1, 2, 3, 0]]
    assert rows["targets"].tolist() == [[6, IGNORED, 8, IGNORED], [2, 3, IGNORED, IGNORED]]
    assert rows["documents"].tolist() == [[0, 0, 1, 1], [0, 0, 0, -1]]
    batch["documents"] = batch["documents"].clamp(max=0)
    assert "documents" not in make_task(network()).on_before_batch_transfer(batch, 0)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_gradient_is_the_same_on_any_number_of_ranks(ranks: int) -> None:
    """Rows have different numbers of targets, and the ranks' gradients are averaged."""

    def gradient(parts: list[range]) -> Tensor:
        task = make_task(network())
        for part in parts:
            batch = task.on_before_batch_transfer(rows_of(part), 0)
            (task.training_step(batch, 0) / len(parts)).backward()
        return torch.cat([p.grad.flatten() for p in task.parameters() if p.grad is not None])

    each = 16 // ranks
    parts = [range(rank * each, rank * each + each) for rank in range(ranks)]
    torch.testing.assert_close(gradient(parts), gradient([range(16)]), rtol=1e-4, atol=1e-7)


def test_metrics_are_means_over_all_tokens_and_bytes() -> None:
    task, parts = make_task(network()), [range(3), range(3, 16)]
    for part in parts:
        task.validation_step(task.on_before_batch_transfer(rows_of(part), 0), 0)
    task.on_validation_epoch_end()
    batch = task.on_before_batch_transfer(rows_of(range(16)), 0)
    logits, targets = task(batch).flatten(0, 1), batch["targets"].flatten()
    loss = cross_entropy(logits, targets, ignore_index=IGNORED)
    torch.testing.assert_close(task.logged["val/loss"], loss)
    torch.testing.assert_close(task.logged["val/perplexity"], loss.exp())
    bits = loss * (targets != IGNORED).sum() / np.log(2) / batch["bytes"].sum()
    torch.testing.assert_close(task.logged["val/bits_per_byte"], bits.float())


def test_generated_tokens_follow_from_what_was_learnt() -> None:
    """A network that has learned to count continues to count beyond the length of its rows."""
    model = network()
    task, optimizer = make_task(model), torch.optim.AdamW(model.parameters(), 1e-2)
    for start in range(150):
        tokens = (torch.arange(13) + 3 * start) % VOCABULARY
        loss = cross_entropy(model(tokens[None, :-1])[0], tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert task.generate([20], 14, 0.0, 0) == [*range(20, 29), *range(6)]
    one, same, other = (task.generate([20], 14, 9.0, seed) for seed in (1, 1, 2))
    assert one == same != other and len(one) == 15

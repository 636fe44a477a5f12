"""Loss and sums of a batch, the mean over tokens on any number of ranks, and generation."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from src.models.lightning.gpt import GPT
from src.tasks.language_model import IGNORED
from src.tasks.lightning.language_model import LanguageModel
from tests.tasks.sentences import VOCABULARY, open_sentences
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.samples import Reader

DATA = open_sentences().train


def network() -> GPT:
    torch.manual_seed(0)
    return GPT(VOCABULARY, 12, 2, 2, 1, 16, None, False)


def test_padding_counts_nowhere() -> None:
    """Return a row whose second target starts another document, and one of weight 0."""
    logits = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 0.0], [2.0, 0.0]]])
    batch = {
        "tokens": torch.zeros(2, 2, dtype=torch.int32),
        "targets": torch.tensor([[0, IGNORED], [1, 1]]),
        "bytes": torch.tensor([4.0, 8.0]),
    }
    losses, sums = LanguageModel().step(
        lambda tokens, documents: logits, batch, torch.tensor([2.0, 0.0]), True
    )  # type: ignore[arg-type]
    nats = np.log(1 + np.exp([-1.0, 2.0]))
    np.testing.assert_allclose(losses, nats, rtol=1e-5)
    np.testing.assert_allclose(sums, [nats[0], 1, 4], rtol=1e-5)


def test_a_row_without_targets_has_no_loss() -> None:
    batch = {
        "tokens": torch.zeros(1, 2, dtype=torch.int32),
        "targets": torch.full((1, 2), IGNORED),
        "bytes": torch.zeros(1),
    }
    losses, _ = LanguageModel().step(
        lambda tokens, documents: torch.zeros(1, 2, 3), batch, torch.ones(1), True
    )  # type: ignore[arg-type]
    assert losses.tolist() == [0.0]


def test_a_mask_only_where_a_row_has_several_documents() -> None:
    task, one, several = LanguageModel(), np.array([0, 2]), np.array([0, 1])
    assert "documents" not in task.prepare(DATA.read(one, 0, True))
    assert "documents" in task.prepare(DATA.read(several, 0, True))


def gradient(ranks: int, accumulate: int) -> Tensor:
    """Return the gradient of the first optimizer step over 16 rows, as a loop computes it: means over rows, batches and ranks."""
    task, model, reader = LanguageModel(), network(), Reader(DATA, 0, LanguageModel().prepare)
    for rank in range(ranks):
        order = BatchOrder(16 // accumulate, 3, rank, ranks, train=True, accumulate=accumulate)
        for batch in range(accumulate):
            indices, weight = order.rows(len(DATA), 0, batch, DATA.sizes)
            rows, weights = reader.read(indices, 0, True), torch.from_numpy(weight)
            losses, _ = task.step(model, rows, weights, True)
            ((losses * weights).mean() / accumulate / ranks).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.fixture(scope="module")
def exact() -> Tensor:
    """Return the gradient of the mean over all targets of the same 16 rows."""
    model = network()
    indices, _ = BatchOrder(16, 3, train=True).rows(len(DATA), 0, 0)
    rows = Reader(DATA, 0, LanguageModel().prepare).read(indices, 0, True)
    targets = rows["targets"]
    assert len({*(targets != IGNORED).sum(1).tolist()}) > 4  # rows differ
    logits = model(rows["tokens"], rows["documents"])
    cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 4)])
def test_the_gradient_is_that_of_the_mean_over_tokens(ranks: int, accumulate: int, exact: Tensor) -> None:
    torch.testing.assert_close(gradient(ranks, accumulate), exact, rtol=1e-4, atol=1e-7)


def test_generated_tokens_follow_from_what_was_learnt() -> None:
    """A network that has learned to count continues to count beyond the length of its rows."""
    model, task = network(), LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for start in range(150):
        tokens = (torch.arange(13) + 3 * start) % VOCABULARY
        loss = cross_entropy(model(tokens[None, :-1])[0], tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert task.generate(model, [20], 14, 0.0, 0) == [*range(20, 29), *range(6)]
    assert isinstance(model, nn.Module) and all(p.requires_grad for p in model.parameters())

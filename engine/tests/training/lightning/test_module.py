"""The loss and the running sums."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from src.data.digits import open_digits
from src.tasks.lightning.classification import Classification
from train_anywhere.config.schema import Config
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.loader import Batches, BatchLoader, torch_loader
from train_anywhere.data.torch.samples import Reader
from train_anywhere.training.lightning.module import RunningSums, TaskModule
from train_anywhere.training.plan import build_network, make_plan


def loader(data: Any, batch_size: int) -> BatchLoader:
    reader = Reader(data, 0, Classification().prepare)
    return torch_loader(Batches(reader, BatchOrder(batch_size, seed=0), False))


def module_of(make_config: Callable[..., Config]) -> TaskModule:
    config = make_config("model=mlp", "model.dropout=0")
    network = build_network(config, {"shape": (8, 8, 1), "outputs": 10})
    return TaskModule(Classification(), network, config, make_plan(config, 10, 1, 1, 1), 1)


def test_padding_counts_nowhere(make_config: Callable[..., Config]) -> None:
    """Over an epoch with a padded last batch: each sample counts once."""
    module, train = module_of(make_config), open_digits().train
    batches = list(loader(train, 100))
    assert len(batches) * 100 > len(train)
    for number, batch in enumerate(batches):
        module.validation_step(batch, number)
    image = torch.cat([b.rows[0] for b in batches])[: len(train)]
    label = torch.cat([b.rows[1] for b in batches])[: len(train)]
    loss, right, count = module.eval_sums.take(torch.device("cpu")).tolist()
    logits = module(image)
    assert count == len(train)
    assert right == (logits.argmax(1) == label).sum().item()
    torch.testing.assert_close(loss / count, cross_entropy(logits, label).item(), rtol=1e-5, atol=0)


def test_the_loss_of_a_padded_batch_is_the_mean_over_its_samples(make_config: Callable[..., Config]) -> None:
    module, train = module_of(make_config), open_digits().train
    *_, last = loader(train, 100)
    real = len(train) % 100
    expected = cross_entropy(module(last.rows[0][:real]), last.rows[1][:real])
    torch.testing.assert_close(module.training_step(last, 0), expected)


def test_taking_the_sums_starts_from_zero() -> None:
    running = RunningSums(3)
    running.add(torch.tensor([1.0, 1.0, 1.0]))
    running.add(torch.tensor([2.0, 0.0, 1.0]))
    assert running.take(torch.device("cpu")).tolist() == [3.0, 1.0, 2.0]
    assert running.take(torch.device("cpu")).tolist() == [0.0, 0.0, 0.0]

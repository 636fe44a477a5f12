"""The loss and the running sums."""

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from src.config.schema import Config
from src.data.digits import open_digits
from src.data.order import BatchOrder
from src.data.torch_loader import torch_loader
from src.models.lightning import build_model
from src.training.lightning.module import Classifier, RunningSums
from src.training.plan import make_plan


def classifier(make_config: Callable[..., Config]) -> Classifier:
    config = make_config("model=mlp", "model.dropout=0")
    network = build_model(config.model, (8, 8, 1), 10)
    return Classifier(network, config, make_plan(config, 1000, 100, 100, 1), 1)


def test_padding_counts_nowhere(make_config: Callable[..., Config]) -> None:
    """Over an epoch with a padded last batch: each sample counts once."""
    module, train = classifier(make_config), open_digits().train
    batches = list(torch_loader(train, BatchOrder(100, seed=0)))
    assert len(batches) * 100 > len(train)
    for number, batch in enumerate(batches):
        module.validation_step(batch, number)
    image = torch.cat([b.image for b in batches])[: len(train)]
    label = torch.cat([b.label for b in batches])[: len(train)]
    loss, right, count = module.eval_sums.take(torch.device("cpu")).tolist()
    logits = module(image)
    assert count == len(train)
    assert right == (logits.argmax(1) == label).sum().item()
    torch.testing.assert_close(loss / count, cross_entropy(logits, label).item(), rtol=1e-5, atol=0)


def test_the_loss_of_a_padded_batch_is_the_mean_over_its_samples(make_config: Callable[..., Config]) -> None:
    module, train = classifier(make_config), open_digits().train
    *_, last = torch_loader(train, BatchOrder(100, seed=0))
    real = len(train) % 100
    expected = cross_entropy(module(last.image[:real]), last.label[:real])
    torch.testing.assert_close(module.training_step(last, 0), expected)


def test_taking_the_sums_starts_from_zero() -> None:
    running = RunningSums()
    running.add(torch.tensor([1.0, 1.0, 1.0]))
    running.add(torch.tensor([2.0, 0.0, 1.0]))
    assert running.take(torch.device("cpu")).tolist() == [3.0, 1.0, 2.0]
    assert running.take(torch.device("cpu")).tolist() == [0.0, 0.0, 0.0]

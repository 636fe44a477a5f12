"""`gpt` in torch: mask, activation checkpointing, initial weights, published sizes."""

from collections.abc import Callable

import pytest
import torch

from src.models.gpt import parameter_count
from src.models.lightning import count_parameters
from src.models.lightning.gpt import GPT
from train_anywhere.config.schema import Config
from train_anywhere.training.plan import build_network

MakeConfig = Callable[..., Config]


def small(checkpoint_activations: bool = False, kv_heads: int = 2) -> GPT:
    torch.manual_seed(0)
    return GPT(50, 16, 2, 4, kv_heads, 32, None, checkpoint_activations)


def tokens(rows: int = 2, length: int = 10) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(1))


def test_no_token_sees_a_later_one() -> None:
    model, before = small(), tokens()
    after = before.clone()
    after[:, 6:] = (after[:, 6:] + 1) % 50
    one, other = model(before), model(after)
    torch.testing.assert_close(one[:, :6], other[:, :6])
    assert (one[:, 6:] != other[:, 6:]).any(-1).all()


def test_a_document_is_as_if_it_were_alone() -> None:
    """A document has the same logits anywhere in a row: RoPE depends on distances."""
    model, row = small(), tokens(1)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, -1]])
    packed = model(row, documents)
    for first, last in ((0, 3), (3, 7), (7, 9)):
        torch.testing.assert_close(packed[:, first:last], model(row[:, first:last]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_one_document_needs_no_mask(kv_heads: int) -> None:
    model, row = small(kv_heads=kv_heads), tokens()
    torch.testing.assert_close(model(row), model(row, torch.zeros_like(row)), rtol=1e-4, atol=1e-5)


def test_positions_matter() -> None:
    """If two earlier tokens are swapped, the last logits change, because of RoPE."""
    model, row = small(), tokens(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    assert not torch.allclose(model(row)[0, -1], model(row[:, [1, 0, *range(2, 10)]])[0, -1], atol=1e-3)


def test_computing_again_changes_no_gradient_and_keeps_less() -> None:
    kept = []
    gradients = []
    for again in (False, True):
        model, sizes = small(again), list[int]()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            loss = model(tokens(8, 16)).square().mean()
        loss.backward()
        kept.append(sum(sizes))
        gradients.append([p.grad for p in model.parameters()])
    assert kept[1] < kept[0] / 3
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_first_weights() -> None:
    """Residual projections start small, and the first loss is that of a uniform guess."""
    torch.manual_seed(0)
    model = GPT(256, 16, 8, 4, 4, 128, None, False)
    block = model.blocks[3]
    assert block.attention.query.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attention.output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.feed_forward.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert model.head.weight is model.embedding.weight
    logits = model(torch.randint(0, 256, (4, 16)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 256, (64,)))
    assert loss.item() == pytest.approx(5.545, abs=0.15)


SIZES = {"gpt": 256, "gpt_10m": 256, "gpt_125m": 50_257, "gpt_1b": 128_256, "gpt_7b": 32_000}


@pytest.mark.parametrize("choice", SIZES)
def test_parameters_without_allocating_them(choice: str, make_config: MakeConfig) -> None:
    """Llama 3.2 1B has 1,235,814,400 parameters, Llama 2 7B 6,738,415,616 (untied)."""
    config = make_config("task=language_model", f"model={choice}")
    with torch.device("meta"):
        model = build_network(config, {"vocabulary": SIZES[choice], "length": 64})
    numbers = {
        name: config.model.arguments[name] for name in ("layers", "heads", "kv_heads", "width", "hidden")
    }
    assert count_parameters(model) == parameter_count(SIZES[choice], **numbers)
    known = {
        "gpt": 1_214_080,
        "gpt_10m": 9_540_480,
        "gpt_125m": 123_551_232,
        "gpt_1b": 1_235_814_400,
        "gpt_7b": 6_738_415_616 - 32_000 * 4096,
    }
    assert count_parameters(model) == known[choice]


def test_every_parameter_learns() -> None:
    model = small()
    torch.nn.functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []

"""Shapes, sizes and gradients of the models in torch."""

from collections.abc import Callable

import pytest
import torch

from src.models.lightning import count_parameters
from train_anywhere.config.schema import Config
from train_anywhere.training.plan import build_network

MakeConfig = Callable[..., Config]
CHOICES = ["mlp", "cnn", "resnet18", "resnet50"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.quick("cnn-3", "resnet18-1")
def test_images_become_logits(choice: str, channels: int, make_config: MakeConfig) -> None:
    model = build_network(make_config(f"model={choice}"), {"shape": (33, 65, channels), "outputs": 7})
    assert model(torch.randn(2, channels, 33, 65)).shape == (2, 7)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_parameter_learns(choice: str, make_config: MakeConfig) -> None:
    """Every parameter gets a gradient, so no layer is built without being used."""
    model = build_network(make_config(f"model={choice}"), {"shape": (32, 32, 1), "outputs": 10})
    torch.nn.functional.cross_entropy(model(torch.randn(4, 1, 32, 32)), torch.arange(4)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_parameters_of_the_small_models(make_config: MakeConfig) -> None:
    """The numbers of parameters for digits (8x8 grey, 10 classes), counted by hand."""
    mlp = build_network(make_config("model=mlp", "model.hidden=[20,30]"), {"shape": (8, 8, 1), "outputs": 10})
    assert count_parameters(mlp) == 64 * 20 + 20 + 20 * 30 + 30 + 30 * 10 + 10
    linear = build_network(make_config("model=mlp", "model.hidden=[]"), {"shape": (8, 8, 1), "outputs": 10})
    assert count_parameters(linear) == 64 * 10 + 10
    cnn = build_network(make_config("model=cnn", "model.width=4"), {"shape": (8, 8, 1), "outputs": 10})
    convolutions = 9 * 4 + 2 * 4 + 9 * 4 * 8 + 2 * 8
    assert count_parameters(cnn) == convolutions + (8 * 4 * 4) * 128 + 128 + 128 * 10 + 10


@pytest.mark.parametrize(("choice", "published"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_resnets_have_the_published_size(choice: str, published: int, make_config: MakeConfig) -> None:
    """Torchvision's models have the same sizes, with 3 channels and 1000 classes."""
    assert (
        count_parameters(
            build_network(make_config(f"model={choice}"), {"shape": (224, 224, 3), "outputs": 1000})
        )
        == published
    )


def test_small_images_keep_their_size_at_first(make_config: MakeConfig) -> None:
    """For 32x32 pixels the last stage has 4x4 pixels with the small stem, else 1x1."""
    for small, side in (("true", 4), ("false", 1)):
        model = build_network(
            make_config("model=resnet18", f"model.small_images={small}"),
            {"shape": (32, 32, 3), "outputs": 10},
        )
        assert model[:-3](torch.randn(2, 3, 32, 32)).shape == (2, 512, side, side)


def test_a_bottleneck_strides_in_its_3x3_convolution(make_config: MakeConfig) -> None:
    model = build_network(make_config("model=resnet50"), {"shape": (224, 224, 3), "outputs": 10})
    strided = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.stride == (2, 2)]
    assert [m.kernel_size[0] for m in strided] == [7, *[3, 1] * 3]  # the 1x1 ones are the shortcuts


def test_dropout_is_that_of_the_configuration(make_config: MakeConfig) -> None:
    model = build_network(make_config("model=cnn", "model.dropout=0.3"), {"shape": (8, 8, 1), "outputs": 10})
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [0.3]

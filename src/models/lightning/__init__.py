"""Models as torch modules: images float32 [b, C, H, W] in, logits [b, classes] out."""

from torch import nn

from src.config.choices import CnnModel, MlpModel, Model, ResnetModel
from src.errors import ConfigError
from src.models.lightning.cnn import cnn
from src.models.lightning.mlp import mlp
from src.models.lightning.resnet import resnet18, resnet50


def build_model(model: Model, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network that `model` names.

    Args:
        model: the section `model` of the configuration.
        shape: height, width and channels of an image.
        classes: number of classes.

    Raises:
        ConfigError: the model exists for the other framework only.
    """
    match model:
        case MlpModel(hidden=hidden, dropout=dropout):
            return mlp(shape, classes, hidden, dropout)
        case CnnModel(width=width, dropout=dropout):
            return cnn(shape, classes, width, dropout)
        case ResnetModel(name=name, small_images=small_images):
            return {"resnet18": resnet18, "resnet50": resnet50}[name](shape[2], classes, small_images)
        case _:
            raise ConfigError(
                f"model={model.name} has no network for framework=lightning; use framework=keras, or another model."
            )


def parameter_count(network: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)

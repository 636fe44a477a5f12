"""The groups of which a run picks one: data sets, models, optimizers, schedules, strategies. Their defaults are in configs/<group>/."""

from dataclasses import dataclass
from typing import Annotated, Literal

from src.config.limits import Epochs, Items, Probability, Range
from src.config.paths import AbsoluteFolder

BatchSize = Annotated[int, Range(at_least=1, at_most=2**24)]
Workers = Annotated[int, Range(at_least=0, at_most=256)]
Side = Annotated[int, Range(at_least=1, at_most=2**14)]
Width = Annotated[int, Range(at_least=1, at_most=2**16)]
Samples = Annotated[int, Range(at_least=1, at_most=10**8)]
LearningRate = Annotated[float, Range(above=0, at_most=1e6)]
WeightDecay = Annotated[float, Range(at_least=0, at_most=1e6)]


@dataclass(frozen=True)
class DigitsData:
    """1,797 real handwritten digits, 8x8 grey; part of the project, so no download."""

    name: Literal["digits"]
    batch_size: BatchSize  # global: over all ranks
    workers: Workers  # loading processes per rank; 0 loads in the training process


@dataclass(frozen=True)
class MnistData:
    """MNIST's four IDX files under `<dir>/MNIST/raw`, fetched from a mirror when missing and `download` is true."""

    name: Literal["mnist"]
    batch_size: BatchSize
    workers: Workers
    dir: AbsoluteFolder
    download: bool


@dataclass(frozen=True)
class ImageFolderData:
    """The ImageNet layout: `<dir>/train/<class>/*.jpeg` and `<dir>/val/<class>/*.jpeg`; `<dir>/test` if it exists."""

    name: Literal["imagefolder"]
    batch_size: BatchSize
    workers: Workers
    dir: AbsoluteFolder
    image_size: Side  # side of the square crop, in pixels
    channels: Literal[1, 3]


@dataclass(frozen=True)
class SyntheticData:
    """Random images of any shape, number of classes and length, for benchmarks."""

    name: Literal["synthetic"]
    batch_size: BatchSize
    workers: Workers
    height: Side
    width: Side
    channels: Side
    classes: Annotated[int, Range(at_least=1, at_most=2**24)]
    length: Samples  # training samples
    val_length: Samples  # validation samples, and as many test samples


@dataclass(frozen=True)
class MlpModel:
    """Fully connected layers."""

    name: Literal["mlp"]
    hidden: Annotated[list[Width], Items(example="[256,128]")]  # width of each hidden layer
    dropout: Probability


@dataclass(frozen=True)
class CnnModel:
    """Two convolutions, batch normalisation, one hidden layer: enough for digits."""

    name: Literal["cnn"]
    width: Annotated[int, Range(at_least=1, at_most=2**12)]  # channels of the first convolution
    dropout: Probability


@dataclass(frozen=True)
class ResnetModel:
    """Residual networks of He et al. (2016), https://arxiv.org/abs/1512.03385, with the stride in the 3x3 convolution (v1.5)."""

    name: Literal["resnet18", "resnet50"]
    small_images: bool  # 3x3 stem without pooling, for images below about 64 pixels


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; weight decay is the classical kind, added to the gradient."""

    name: Literal["sgd"]
    lr: LearningRate
    scale_lr: Literal["none", "linear", "sqrt"]
    momentum: Probability
    nesterov: bool
    weight_decay: WeightDecay


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    name: Literal["adamw"]
    lr: LearningRate
    scale_lr: Literal["none", "linear", "sqrt"]
    betas: Annotated[list[Probability], Items(count=2, example="[0.9,0.999]")]
    eps: Annotated[float, Range(above=0, at_most=1)]
    weight_decay: WeightDecay


@dataclass(frozen=True)
class ConstantSchedule:
    """The learning rate stays what it is after the warm-up."""

    name: Literal["constant"]
    warmup_epochs: Epochs


@dataclass(frozen=True)
class CosineSchedule:
    """Half a cosine, from the learning rate down to `final` times it, https://arxiv.org/abs/1608.03983."""

    name: Literal["cosine"]
    warmup_epochs: Epochs
    final: Annotated[float, Range(at_least=0, at_most=1)]  # fraction of the learning rate


@dataclass(frozen=True)
class StepSchedule:
    """The learning rate is multiplied by `gamma` at each of `milestones`."""

    name: Literal["step"]
    warmup_epochs: Epochs
    milestones: Annotated[list[Epochs], Items(ascending=True, example="[30,60,90]")]  # epochs
    gamma: Annotated[float, Range(above=0, at_most=1)]


@dataclass(frozen=True)
class PlainStrategy:
    """How ranks share the work; the table of what works where is in `src/config/strategies.py`."""

    name: Literal["auto", "single", "ddp", "dp", "mirrored", "multiworker_mirrored"]


@dataclass(frozen=True)
class HorovodStrategy:
    """Horovod's ring all-reduce, under any launcher."""

    name: Literal["horovod"]
    compression: Literal["none", "fp16"]  # of the gradients, on the wire


@dataclass(frozen=True)
class FsdpStrategy:
    """Fully sharded data parallel: parameters, gradients and optimizer state are split over the ranks."""

    name: Literal["fsdp"]


Data = DigitsData | MnistData | ImageFolderData | SyntheticData
Model = MlpModel | CnnModel | ResnetModel
Optimizer = Sgd | AdamW
Strategy = PlainStrategy | HorovodStrategy | FsdpStrategy
Schedule = ConstantSchedule | CosineSchedule | StepSchedule

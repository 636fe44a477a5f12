"""The groups of which a run picks a choice, such as `optimizer=adamw`. Their defaults are in configs/<group>/."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from train_anywhere.config.limits import Epochs, Items, Probability, Range
from train_anywhere.config.open_groups import DERIVED, Open

BatchSize = Annotated[int, Range(at_least=1, at_most=2**24)]
Workers = Annotated[int, Range(at_least=0, at_most=256)]
Side = Annotated[int, Range(at_least=1, at_most=2**14)]
Width = Annotated[int, Range(at_least=1, at_most=2**16)]
Channels = Annotated[int, Range(at_least=1, at_most=2**12)]
HiddenLayers = list[Width]
"""Widths from the input on; empty: a linear model."""
Samples = Annotated[int, Range(at_least=1, at_most=10**8)]
LearningRate = Annotated[float, Range(above=0, at_most=1e6)]
WeightDecay = Annotated[float, Range(at_least=0, at_most=1e6)]
NoDecay = list[str]
"""Parts of the names of parameters, or of their layers, that are not decayed: [bias, norm]."""


@dataclass(frozen=True)
class Task(Open):
    """What is learnt: a task of src/tasks or like one, or what works with the framework's own loop.

    Attributes:
        metrics: names of a native task's metrics, each with what is better, "min" or "max"; empty where only the run will tell.
        headline: the metric by which a checkpoint is the best.
        unit: what a row of a batch is, in the plural.
    """

    name: str
    metrics: Mapping[str, Literal["min", "max"]] = field(default_factory=dict, metadata=DERIVED)
    headline: str | None = field(default=None, metadata=DERIVED)
    unit: str = field(default="samples", metadata=DERIVED)


@dataclass(frozen=True)
class Data(Open):
    """A data set, and how it is read."""

    name: str
    batch_size: BatchSize  # global: over all ranks
    workers: Workers  # loading processes per rank; 0 loads in the training process
    stage: bool = False  # copied once to the disk of each node, see features/stage/copy.py


@dataclass(frozen=True)
class Model(Open):
    """A network for a native task.

    Attributes:
        from_data: arguments that the data set knows: {"width": "columns"} passes its `columns` as `width`.
    """

    name: str
    from_data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; weight decay is the classical kind, added to the gradient."""

    name: Literal["sgd"]
    lr: LearningRate
    scale_lr: Literal["none", "linear", "sqrt"]
    momentum: Probability
    nesterov: bool
    weight_decay: WeightDecay
    no_decay: NoDecay


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    name: Literal["adamw"]
    lr: LearningRate
    scale_lr: Literal["none", "linear", "sqrt"]
    betas: Annotated[list[Probability], Items(count=2, example="[0.9,0.999]")]
    eps: Annotated[float, Range(above=0, at_most=1)]
    weight_decay: WeightDecay
    no_decay: NoDecay


@dataclass(frozen=True)
class OtherOptimizer(Open):
    """Any optimizer of the framework in use; it gets the parameters, and `lr` as its framework calls it."""

    name: str
    lr: LearningRate
    scale_lr: Literal["none", "linear", "sqrt"]
    no_decay: NoDecay


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
class OtherSchedule(Open):
    """Any schedule of the framework in use, asked at each optimizer step or once an epoch."""

    name: str
    interval: Literal["step", "epoch"]


@dataclass(frozen=True)
class Callback(Open):
    """A callback of the framework in use."""


@dataclass(frozen=True)
class FeatureClass(Open):
    """A feature of the project, a subclass of `train_anywhere.features.feature.Feature`."""


@dataclass(frozen=True)
class Logger(Open):
    """A logger of the framework in use."""


PlainStrategyName = Literal[
    "auto",
    "single",
    "dp",
    "mirrored",
    "multiworker_mirrored",
]


@dataclass(frozen=True)
class PlainStrategy:
    """How ranks share the work; the table of what works where is in `config/checks/strategy_table.py`."""

    name: PlainStrategyName


@dataclass(frozen=True)
class DdpStrategy:
    """torch's DistributedDataParallel: gradients are averaged while the backward pass computes the next ones."""

    name: Literal["ddp"]
    compression: Literal["none", "fp16", "bf16"]  # of the gradients, on the wire
    # size of the pieces in which gradients are sent, in MiB; null: torch's own 25
    bucket_cap_mb: Annotated[float, Range(above=0, at_most=2**15)] | None
    static_graph: bool  # every step uses the same weights in the same way
    process_group_backend: Literal["nccl", "gloo"] | None  # what sends; null: nccl between GPUs, else gloo


@dataclass(frozen=True)
class HorovodStrategy:
    """Horovod's ring all-reduce, under any launcher."""

    name: Literal["horovod"]
    compression: Literal["none", "fp16"]  # of the gradients, on the wire


@dataclass(frozen=True)
class FsdpStrategy:
    """Fully sharded data parallel: parameters, gradients and optimizer state are split over the ranks."""

    name: Literal["fsdp"]
    blocks: list[
        str
    ]  # names of the classes of layers that are gathered one by one; none: each layer of the network, or of its lists
    shard_within_node: (
        bool  # each node holds the whole model between its ranks, and nodes average their gradients
    )


Optimizer = Sgd | AdamW | OtherOptimizer
Strategy = PlainStrategy | DdpStrategy | HorovodStrategy | FsdpStrategy
NamedSchedule = ConstantSchedule | CosineSchedule | StepSchedule
Schedule = NamedSchedule | OtherSchedule

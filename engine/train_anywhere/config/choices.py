"""Groups with one choice per run, such as `optimizer=adamw`.

Their values are in configs/<group>/. The defaults here are for files that do not have a key, such as those of an earlier version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from train_anywhere.config.keys import OpenSection, key
from train_anywhere.config.limits import Epochs, Items, Probability, Range, is_pattern

BatchSize = Annotated[int, Range(at_least=1, at_most=2**24)]
Workers = Annotated[int, Range(at_least=0, at_most=256)]
Side = Annotated[int, Range(at_least=1, at_most=2**14)]
Width = Annotated[int, Range(at_least=1, at_most=2**16)]
Channels = Annotated[int, Range(at_least=1, at_most=2**12)]
HiddenLayers = list[Width]
"""Widths of the layers, the one next to the input first; an empty list is a linear model."""
Samples = Annotated[int, Range(at_least=1, at_most=10**8)]
LearningRate = Annotated[float, Range(above=0, at_most=1e6)]
WeightDecay = Annotated[float, Range(at_least=0, at_most=1e6)]
NoDecay = list[str]
"""Substrings of the names of parameters or layers without weight decay: [bias, norm]."""


@dataclass(frozen=True)
class ParameterGroup:
    """Settings of the parameters that a pattern matches.

    Attributes:
        match: regular expression for the whole name of a parameter.
        lr: their learning rate, with the schedule of all others; null: `optimizer.lr`.
        weight_decay: their weight decay; null: that of the optimizer.
    """

    match: Annotated[str, is_pattern]
    lr: LearningRate | None = None
    weight_decay: WeightDecay | None = None


Groups = list[ParameterGroup]
"""Groups of parameters; if several match a parameter, the last one that has a value sets it."""


@dataclass(frozen=True)
class Task(OpenSection):
    """The task: a LightningModule, or what returns a compiled keras.Model.

    A target that needs an argument `network` gets that of the section `model`, and the optimizer of the configuration.

    Attributes:
        monitors: names of its metrics without train/, val/ or test/, each with "min" or "max". The first one, of the validation,
            decides which checkpoint is the best. Empty: they are not known before the run.
    """

    name: str
    monitors: Mapping[str, Literal["min", "max"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Data(OpenSection):
    """A data set and its loading."""

    name: str
    batch_size: BatchSize = key(32)  # global: over all ranks
    # loading processes per rank; 0 loads in the training process; auto adds one per epoch while steps wait
    workers: Workers | Literal["auto"] = key(0)
    stage: bool = False  # copy it once to the disk of each node, see features/stage.py

    @property
    def own_split(self) -> bool:
        """True with `data.split=own`: a stream gives each rank rows of its own."""
        return self.arguments.get("split") == "own"


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters, https://arxiv.org/abs/2106.09685, which are trained alone.

    Attributes:
        rank: inner dimension of an adapter.
        alpha: the output of an adapter is multiplied by alpha / rank.
        targets: layers that get one, by their names or the ends of those; null: peft's choice for a model of transformers.
        dropout: of the input of an adapter; Lightning only.
        train: layers that are trained as a whole, such as a new last one.
    """

    rank: Annotated[int, Range(at_least=1, at_most=2**16)] = 8
    alpha: Annotated[float, Range(above=0, at_most=1e6)] = 16.0
    targets: Annotated[list[str], Items(example="[q_proj,v_proj]")] | None = None
    dropout: Probability = 0.0
    train: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Model(OpenSection):
    """The network of a task that takes one.

    Attributes:
        from_data: arguments with values of the data set: {"width": "columns"} passes its `columns` as `width`.
        lora: adapters, also for the network of a whole module; null: train all weights.
    """

    name: str
    from_data: Mapping[str, str] = field(default_factory=dict)
    lora: Lora | None = field(
        default=None,
        metadata={
            "default": None,
            "meaning": "adapters: {rank: 8, alpha: 16, targets: [q_proj, v_proj], train: [head]}; null: train all weights",
        },
    )


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum. Weight decay is added to the gradient."""

    name: Literal["sgd"]
    lr: LearningRate = key(0.1)
    scale_lr: Literal["none", "linear", "sqrt"] = key("none")
    momentum: Probability = key(0.9)
    nesterov: bool = key(False)
    weight_decay: WeightDecay = key(1e-4)
    no_decay: NoDecay = key([])
    groups: Groups = key([])


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    name: Literal["adamw"]
    lr: LearningRate = key(2e-3)
    scale_lr: Literal["none", "linear", "sqrt"] = key("none")
    betas: Annotated[list[Probability], Items(count=2, example="[0.9,0.999]")] = key([0.9, 0.999])
    eps: Annotated[float, Range(above=0, at_most=1)] = key(1e-8)
    weight_decay: WeightDecay = key(0.01)
    no_decay: NoDecay = key([])
    groups: Groups = key([])


@dataclass(frozen=True)
class OtherOptimizer(OpenSection):
    """Any optimizer of the framework, which gets the parameters and `lr`."""

    name: str
    lr: LearningRate = key(1e-3)
    scale_lr: Literal["none", "linear", "sqrt"] = key("none")
    no_decay: NoDecay = key([])
    groups: Groups = key([])


@dataclass(frozen=True)
class ConstantSchedule:
    """A constant learning rate after the warm-up."""

    name: Literal["constant"]
    warmup_epochs: Epochs = key(0)


@dataclass(frozen=True)
class CosineSchedule:
    """Half a cosine down to `final` times the rate, https://arxiv.org/abs/1608.03983."""

    name: Literal["cosine"]
    warmup_epochs: Epochs = key(1)
    final: Annotated[float, Range(at_least=0, at_most=1)] = key(0.0)  # fraction of the learning rate


@dataclass(frozen=True)
class StepSchedule:
    """A learning rate that is multiplied by `gamma` at each of `milestones`."""

    name: Literal["step"]
    warmup_epochs: Epochs = key(0)
    # epochs
    milestones: Annotated[list[Epochs], Items(ascending=True, example="[30,60,90]")] = key([30, 60, 90])
    gamma: Annotated[float, Range(above=0, at_most=1)] = key(0.1)


@dataclass(frozen=True)
class OtherSchedule(OpenSection):
    """Any schedule of the framework, evaluated at each optimizer step or once per epoch."""

    name: str
    interval: Literal["step", "epoch"] = key("step")


@dataclass(frozen=True)
class PlainStrategy:
    """A strategy without options, see `config/checks/strategy_table.py`."""

    name: Literal["auto", "single", "mirrored", "multiworker_mirrored"]


@dataclass(frozen=True)
class DdpStrategy:
    """torch DistributedDataParallel, which averages gradients during the backward pass."""

    name: Literal["ddp"]
    compression: Literal["none", "fp16", "bf16"] = key("none")  # of gradients in transit
    # size of the buckets in which gradients are sent, in MiB; null: torch's default, 25
    bucket_cap_mb: Annotated[float, Range(above=0, at_most=2**15)] | None = key(None)
    static_graph: bool = key(False)  # promise that all steps use the same weights in the same way
    process_group_backend: Literal["nccl", "gloo"] | None = key(None)  # null: nccl between GPUs, else gloo


@dataclass(frozen=True)
class HorovodStrategy:
    """Horovod's ring all-reduce, with any launcher."""

    name: Literal["horovod"]
    compression: Literal["none", "fp16"] = key("none")  # of gradients in transit


@dataclass(frozen=True)
class FsdpStrategy:
    """Fully sharded data parallel: the whole state is split over the ranks."""

    name: Literal["fsdp"]
    # classes of layers to gather one by one; empty: each layer of the network or of its lists
    blocks: list[str] = key([])
    shard_within_node: bool = key(False)  # shard over the ranks of a node, and average gradients over nodes


Optimizer = Sgd | AdamW | OtherOptimizer
Strategy = PlainStrategy | DdpStrategy | HorovodStrategy | FsdpStrategy
NamedSchedule = ConstantSchedule | CosineSchedule | StepSchedule
Schedule = NamedSchedule | OtherSchedule

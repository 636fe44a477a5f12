"""The configuration, typed: one dataclass per group of `configs/`, and the checks that need more than one key.

The YAML files hold every default; these classes hold types and meaning. `load` turns the tree that Hydra composed into a
`Config` or raises one `ConfigError` that lists everything that is wrong with it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from src import matrix
from src.errors import ConfigError
from src.schema_cluster import Cluster, Container
from src.strict import Choice, build

LimitBatches = int | float
"""A number of batches (int) or a fraction of an epoch (float, 0 to 1), as Lightning reads it."""


@dataclass(frozen=True)
class DigitsData:
    """scikit-learn's 1,797 real handwritten digits, 8x8 grey; part of the package, so no download."""

    name: Literal["digits"]
    batch_size: int  # global: over all ranks
    workers: int  # loading processes per rank; 0 loads in the training process


@dataclass(frozen=True)
class MnistData:
    """MNIST's four IDX files under `<dir>/MNIST/raw`, fetched from a mirror when missing and `download` is true."""

    name: Literal["mnist"]
    batch_size: int
    workers: int
    dir: str
    download: bool


@dataclass(frozen=True)
class ImageFolderData:
    """The ImageNet layout: `<dir>/train/<class>/*.jpeg` and `<dir>/val/<class>/*.jpeg`; `<dir>/test` where there is one."""

    name: Literal["imagefolder"]
    batch_size: int
    workers: int
    dir: str
    image_size: int  # side of the square crop, in pixels
    channels: int  # 1 or 3


@dataclass(frozen=True)
class SyntheticData:
    """Random images of any shape, classes and length: what benchmarks use."""

    name: Literal["synthetic"]
    batch_size: int
    workers: int
    height: int
    width: int
    channels: int
    classes: int
    length: int  # training samples
    val_length: int  # validation samples, and as many test samples


@dataclass(frozen=True)
class MlpModel:
    """Fully connected layers."""

    name: Literal["mlp"]
    hidden: list[int]  # width of each hidden layer
    dropout: float


@dataclass(frozen=True)
class CnnModel:
    """Two convolutions, batch normalisation, one hidden layer: enough for digits."""

    name: Literal["cnn"]
    width: int  # channels of the first convolution
    dropout: float


@dataclass(frozen=True)
class ResnetModel:
    """Residual networks of He et al. (2016), https://arxiv.org/abs/1512.03385, stride in the 3x3 convolution (v1.5)."""

    name: Literal["resnet18", "resnet50"]
    small_images: bool  # 3x3 stem without pooling, for images below about 64 pixels


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; the weight decay is the classical one, added to the gradient."""

    name: Literal["sgd"]
    lr: float
    scale_lr: Literal["none", "linear", "sqrt"]
    momentum: float
    nesterov: bool
    weight_decay: float


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    name: Literal["adamw"]
    lr: float
    scale_lr: Literal["none", "linear", "sqrt"]
    betas: list[float]
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class ConstantSchedule:
    """The learning rate stays what it is after the warm-up."""

    name: Literal["constant"]
    warmup_epochs: float


@dataclass(frozen=True)
class CosineSchedule:
    """Half a cosine from the learning rate down to `final` times it, https://arxiv.org/abs/1608.03983."""

    name: Literal["cosine"]
    warmup_epochs: float
    final: float  # fraction of the learning rate


@dataclass(frozen=True)
class StepSchedule:
    """The learning rate is multiplied by `gamma` at each of `milestones`."""

    name: Literal["step"]
    warmup_epochs: float
    milestones: list[float]  # epochs
    gamma: float


@dataclass(frozen=True)
class PlainStrategy:
    """How ranks share the work; which strategy works where is the table in `src/matrix.py`."""

    name: Literal["auto", "single", "ddp", "dp", "mirrored", "multiworker_mirrored"]


@dataclass(frozen=True)
class HorovodStrategy:
    """Horovod's ring all-reduce, started by any launch method."""

    name: Literal["horovod"]
    compression: Literal["none", "fp16"]  # of the gradients, on the wire


@dataclass(frozen=True)
class FsdpStrategy:
    """Fully sharded data parallel: parameters, gradients and optimizer state are split over the ranks."""

    name: Literal["fsdp"]


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by `min_delta` for `patience` validations; patience null: never."""

    patience: int | None
    monitor: str
    mode: Literal["min", "max"]
    min_delta: float


@dataclass(frozen=True)
class Trainer:
    """The loop, in Lightning's words for both frameworks."""

    nodes: int
    devices: int | Literal["auto"]  # processes = GPUs per node
    total_devices: int | None  # over all nodes: an uneven job, where it is no multiple of nodes
    accelerator: Literal["auto", "cpu", "gpu"]
    precision: Literal["32", "bf16-mixed", "16-mixed"]
    max_epochs: int
    max_steps: int | None  # optimizer steps; null: no limit
    limit_train_batches: LimitBatches
    limit_val_batches: LimitBatches
    limit_test_batches: LimitBatches
    fast_dev_run: bool  # one batch of each loop, nothing logged or checkpointed
    accumulate_grad_batches: int
    gradient_clip_val: float | None  # global norm
    check_val_every_n_epoch: int
    log_every_n_steps: int
    early_stopping: EarlyStopping


@dataclass(frozen=True)
class Checkpoint:
    """When a checkpoint is written, where first, and which are kept."""

    every_n_epochs: int
    every_n_steps: int | None
    every_n_seconds: float | None
    interval: Literal["auto"] | None  # auto: from the measured cost of a checkpoint, see src/interval.py
    local: str | None  # auto, a folder on the node's disk, or null: straight into the run folder
    monitor: str  # metric that says which checkpoint is best
    mode: Literal["min", "max"]
    keep_last: int
    keep_every_n_epochs: int | None


@dataclass(frozen=True)
class Monitor:
    """What is written for people to look at."""

    tensorboard: bool
    csv: bool  # metrics.csv
    progress: Literal["auto", "bar", "plain", "none"]  # auto: a bar on a terminal, else plain lines
    ranks: bool  # each rank says at its start who and where it is, at its end which weights it has


@dataclass(frozen=True)
class Paths:
    """Folders; relative ones are below the folder of the project."""

    results: str  # run folders
    data: str  # data sets


Data = DigitsData | MnistData | ImageFolderData | SyntheticData
Model = MlpModel | CnnModel | ResnetModel
Optimizer = Sgd | AdamW
Strategy = PlainStrategy | HorovodStrategy | FsdpStrategy
Schedule = ConstantSchedule | CosineSchedule | StepSchedule


@dataclass(frozen=True)
class Config:
    """One run, complete. Read-only: what is derived from it is derived where it is needed."""

    name: str
    seed: int
    resume: str | None
    dry_run: bool | Literal["test"]
    framework: matrix.FrameworkName
    launch: matrix.LaunchName
    wait: bool
    strategy: Annotated[Strategy, Choice(PlainStrategy, HorovodStrategy, FsdpStrategy)]
    cluster: Cluster
    container: Container
    data: Annotated[Data, Choice(DigitsData, MnistData, ImageFolderData, SyntheticData)]
    model: Annotated[Model, Choice(MlpModel, CnnModel, ResnetModel)]
    optimizer: Annotated[Optimizer, Choice(Sgd, AdamW)]
    schedule: Annotated[Schedule, Choice(ConstantSchedule, CosineSchedule, StepSchedule)]
    trainer: Trainer
    checkpoint: Checkpoint
    monitor: Monitor
    paths: Paths


Check = Callable[[Config], list[str]]
"""One sentence for each thing that can't work."""

METRICS = ("train/loss", "train/acc", "val/loss", "val/acc")
"""What `checkpoint.monitor` and `trainer.early_stopping.monitor` may name."""


def load(tree: Mapping[str, Any], *checks: Check) -> Config:
    """The typed configuration.

    Args:
        tree: the composed configuration as plain dicts and lists (`OmegaConf.to_container(cfg, resolve=True)`).
        checks: further checks of where it is to run, so that their problems come in the same list.

    Raises:
        ConfigError: with all problems, each with what to type instead.
    """
    problems: list[str] = []
    config = build(Config, tree, problems)
    if config is not None:
        problems += [*cross_checks(config), *(p for check in checks for p in check(config))]
    if config is None or problems:
        raise ConfigError(problems)
    return config


def cross_checks(config: Config) -> list[str]:
    """Every contradiction between keys that are fine one by one; one sentence each."""
    return [*_numbers(config), *_monitors(config), *_name(config), *matrix.problems(config)]


def _numbers(c: Config) -> list[str]:
    t = c.trainer
    at_least_one = {
        "data.batch_size": c.data.batch_size,
        "trainer.nodes": t.nodes,
        "trainer.devices": 1 if t.devices == "auto" else t.devices,
        "trainer.total_devices": 1 if t.total_devices is None else t.total_devices,
        "trainer.max_epochs": t.max_epochs,
        "trainer.max_steps": 1 if t.max_steps is None else t.max_steps,
        "trainer.accumulate_grad_batches": t.accumulate_grad_batches,
        "trainer.check_val_every_n_epoch": t.check_val_every_n_epoch,
        "trainer.log_every_n_steps": t.log_every_n_steps,
        "checkpoint.every_n_epochs": c.checkpoint.every_n_epochs,
        "checkpoint.every_n_steps": 1 if c.checkpoint.every_n_steps is None else c.checkpoint.every_n_steps,
        "checkpoint.keep_last": c.checkpoint.keep_last,
        "checkpoint.keep_every_n_epochs": 1
        if c.checkpoint.keep_every_n_epochs is None
        else c.checkpoint.keep_every_n_epochs,
    }
    not_negative = {
        "data.workers": c.data.workers,
        "seed": c.seed,
        "schedule.warmup_epochs": c.schedule.warmup_epochs,
    }
    found = [f"{key}={value} must be at least 1." for key, value in at_least_one.items() if value < 1]
    found += [f"{key}={value} must not be negative." for key, value in not_negative.items() if value < 0]
    if c.checkpoint.every_n_seconds is not None and c.checkpoint.every_n_seconds <= 0:
        found.append(
            f"checkpoint.every_n_seconds={c.checkpoint.every_n_seconds} must be above 0; null turns it off."
        )
    if c.optimizer.lr <= 0:
        found.append(f"optimizer.lr={c.optimizer.lr} must be above 0.")
    if t.gradient_clip_val is not None and t.gradient_clip_val <= 0:
        found.append(
            f"trainer.gradient_clip_val={t.gradient_clip_val} must be above 0; null turns clipping off."
        )
    for loop in ("train", "val", "test"):
        limit = getattr(t, f"limit_{loop}_batches")
        if limit < 0 or (isinstance(limit, float) and limit > 1):
            found.append(
                f"trainer.limit_{loop}_batches={limit} must be a number of batches (10) or a fraction of them (0.1)."
            )
    return found


def _monitors(c: Config) -> list[str]:
    keys = {
        "checkpoint.monitor": c.checkpoint.monitor,
        "trainer.early_stopping.monitor": c.trainer.early_stopping.monitor,
    }
    return [
        f"{key}={metric} is no metric of this project; use one of {', '.join(METRICS)}."
        for key, metric in keys.items()
        if metric not in METRICS
    ]


def _name(c: Config) -> list[str]:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]*", c.name):
        return []
    return [
        f"name={c.name!r} can't name a folder and a job: use letters, digits and . _ - = + only, "
        "and begin with a letter or digit."
    ]

"""The configuration, typed: one dataclass per group of `configs/`, and the checks that need more than one key.

The YAML files hold every default; these classes hold types and meaning. `load` turns the tree that Hydra composed into a
`Config` or raises one `ConfigError` that lists everything that is wrong with it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from src import matrix
from src.errors import ConfigError
from src.schema_choices import AdamW, Data, Model, Optimizer, Schedule, Strategy
from src.schema_cluster import Cluster, Container
from src.strict import Choice, build

LimitBatches = int | float
"""A number of batches (int) or a fraction of an epoch (float, 0 to 1), as Lightning reads it."""


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
    detect_nan: Literal["warn", "stop", "off"]  # what a loss of nan or inf does, see src/nan_watch.py
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


@dataclass(frozen=True)
class Config:
    """One run, complete. Read-only: what is derived from it is derived where it is needed."""

    name: str
    seed: int
    resume: str | None
    from_scratch: bool  # with resume: begin again at step 0, what the run has is kept aside
    dry_run: bool | Literal["test"]
    framework: matrix.FrameworkName
    launch: matrix.LaunchName
    wait: bool
    strategy: Annotated[Strategy, Choice(*get_args(Strategy))]
    cluster: Cluster
    container: Container
    data: Annotated[Data, Choice(*get_args(Data))]
    model: Annotated[Model, Choice(*get_args(Model))]
    optimizer: Annotated[Optimizer, Choice(*get_args(Optimizer))]
    schedule: Annotated[Schedule, Choice(*get_args(Schedule))]
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
    return [
        *_from_scratch(config),
        *_numbers(config),
        *_monitors(config),
        *_name(config),
        *matrix.problems(config),
    ]


def _from_scratch(c: Config) -> list[str]:
    if c.from_scratch and c.resume is None:
        return ["from_scratch=true belongs to resume=RUN; a new run begins from scratch anyway."]
    return []


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
    if isinstance(c.optimizer, AdamW) and len(c.optimizer.betas) != 2:
        found.append(f"optimizer.betas={c.optimizer.betas} must be two numbers, such as [0.9,0.999].")
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

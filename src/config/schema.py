"""The configuration, typed: one dataclass per group of `configs/`, and the checks that need more than one key.

The YAML files hold every default; these classes hold types and meaning. `load` turns the tree that Hydra composed into a
`Config` or raises one `ConfigError` that lists everything that is wrong with it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from src.config import strategies
from src.config.choices import Data, Model, Optimizer, Schedule, Sgd, Strategy, SyntheticData
from src.config.cluster import Cluster, Container, Gpus
from src.config.environment_values import filled
from src.config.flat import flatten, unflatten
from src.config.limits import MOST, Count, Range
from src.config.paths import AbsoluteFolder, NodeFolder, unexpanded
from src.config.strict import DERIVED, Choice, build
from src.errors import ConfigError

_LIMIT = "use a number of batches (10) or a fraction of them (0.1)"
LimitBatches = (
    Annotated[int, Range(at_least=0, at_most=MOST, hint=_LIMIT)]
    | Annotated[float, Range(at_least=0, at_most=1, hint=_LIMIT)]
)
"""A number of batches (int) or a fraction of an epoch (float, 0 to 1), as Lightning reads it."""

SomeBatches = (
    Annotated[int, Range(at_least=1, at_most=MOST, hint=_LIMIT)]
    | Annotated[float, Range(above=0, at_most=1, hint=_LIMIT)]
)
"""The same, but at least one batch."""

Nodes = Annotated[int, Range(at_least=1, at_most=100_000)]


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by `min_delta` for `patience` validations; patience null: never."""

    patience: Annotated[int, Range(at_least=0, at_most=MOST)] | None
    monitor: str
    mode: Literal["min", "max"]
    min_delta: Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class Trainer:
    """The loop, in Lightning's words for both frameworks."""

    nodes: Nodes
    devices: Gpus | Literal["auto"]  # processes = GPUs per node
    # over all nodes; an uneven job if it is not a multiple of nodes
    total_devices: Annotated[int, Range(at_least=1, at_most=2**20)] | None
    accelerator: Literal["auto", "cpu", "gpu"]
    precision: Literal["32", "bf16-mixed", "16-mixed"]
    max_epochs: Count
    max_steps: Count | None  # optimizer steps; null: no limit
    limit_train_batches: SomeBatches
    limit_val_batches: LimitBatches
    limit_test_batches: LimitBatches
    fast_dev_run: bool  # one batch of each loop, nothing logged or checkpointed
    accumulate_grad_batches: Count
    gradient_clip_val: Annotated[float, Range(above=0, hint="null turns clipping off")] | None  # global norm
    check_val_every_n_epoch: Count
    log_every_n_steps: Count
    # what a loss of nan or inf does, see src/training/nan_watch.py
    detect_nan: Literal["warn", "stop", "off"]
    early_stopping: EarlyStopping


@dataclass(frozen=True)
class Checkpoint:
    """When a checkpoint is written, where first, and which are kept."""

    every_n_epochs: Count
    every_n_steps: Count | None
    every_n_seconds: Annotated[float, Range(above=0, hint="null turns it off")] | None
    # auto: from the measured cost of a checkpoint, see src/checkpoints/interval.py
    interval: Literal["auto"] | None
    local: NodeFolder | None  # auto, a folder on the node's disk, or null: straight into the run folder
    monitor: str  # metric that says which checkpoint is best
    mode: Literal["min", "max"]
    keep_last: Count
    keep_every_n_epochs: Count | None


@dataclass(frozen=True)
class Monitor:
    """What is written for people to look at."""

    tensorboard: bool
    csv: bool  # metrics.csv
    progress: Literal["auto", "bar", "plain", "none"]  # auto: a bar on a terminal, else plain lines
    ranks: bool  # each rank says at its start who and where it is, at its end which weights it has


@dataclass(frozen=True)
class Paths:
    """Folders, absolute."""

    results: AbsoluteFolder  # run folders
    data: AbsoluteFolder  # data sets


@dataclass(frozen=True)
class Config:
    """One run, complete. Read-only: what is derived from it is derived where it is needed.

    Attributes:
        written: what was written where the value is another: {'checkpoint.local': '~/ckpt', 'data.token': '${oc.env:TOKEN}'}.
            A run folder holds this, since each rank reads it again on its own node, and a value may be a secret.
    """

    name: str
    seed: Annotated[int, Range(at_least=0, at_most=2**32 - 1)]  # what numpy's generators take
    resume: str | None
    trust: bool  # with resume: run what the run folder brings as code, see src/runs/trust.py
    from_scratch: bool  # with resume: begin again at step 0, what the run has is kept aside
    dry_run: bool | Literal["test"]
    framework: strategies.FrameworkName
    launch: strategies.LaunchName
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
    written: Mapping[str, Any] = field(default_factory=dict, metadata=DERIVED)


FOLDERS = ("paths.results", "paths.data", "data.dir")
"""Folders of the machine where the command is typed."""

Check = Callable[[Config], list[str]]
"""One sentence for each thing that can't work."""

METRICS = ("train/loss", "train/acc", "val/loss", "val/acc")
"""What `checkpoint.monitor` and `trainer.early_stopping.monitor` may name."""

LARGEST_IMAGE = 2**28
"""Numbers of one synthetic image, or of the means of all classes: 1 GiB."""


def load(tree: Mapping[str, Any], *checks: Check) -> Config:
    """The typed configuration.

    Args:
        tree: the composed configuration as plain dicts and lists (`src.config.environment_values.plain`).
        checks: further checks of where it is to run, so that their problems come in the same list.

    Raises:
        ConfigError: with all problems, each with what to type instead.
    """
    problems: list[str] = []
    config = build(Config, filled(tree, problems), problems)
    if config is not None:
        # keys already reported: the checks see allowed values in their place, and must not report those
        named = {p.partition("=")[0] for p in problems}
        found = [*cross_checks(config), *(p for check in checks for p in check(config))]
        problems += [p for p in found if p.partition("=")[0] not in named]
    if config is None or problems:
        raise ConfigError(*problems)
    return replace(config, written=_written(tree, config))


def as_tree(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts and lists, which `load` turns into it again."""
    flat = flatten(_plain(config))
    folders = {key: unexpanded(flat[key]) for key in FOLDERS if key in flat}
    return unflatten(flat | dict(config.written) | folders)


def _written(tree: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Texts and lists that the schema has turned into something else; folders of this machine are kept absolute."""
    values = flatten(_plain(config))
    return {
        key: written
        for key, written in flatten(tree).items()
        if isinstance(written, str | list) and written != values.get(key) and key not in FOLDERS
    }


def _plain(config: Config) -> dict[str, Any]:
    tree = asdict(replace(config, written={}))
    del tree["written"]
    return tree


def cross_checks(config: Config) -> list[str]:
    """Every contradiction between keys that are fine one by one; one sentence each."""
    checks: tuple[Check, ...] = (
        _from_scratch,
        _devices,
        _nesterov,
        _synthetic_size,
        _monitors,
        _early_stopping,
        _name,
        _strategy,
    )
    return [problem for check in checks for problem in check(config)]


def _strategy(c: Config) -> list[str]:
    devices = c.trainer.total_devices or c.trainer.devices
    return strategies.contradictions(c.framework, c.strategy.name, c.trainer.nodes, devices)


def _from_scratch(c: Config) -> list[str]:
    if c.from_scratch and c.resume is None:
        return ["from_scratch=true belongs to resume=RUN; a new run begins from scratch anyway."]
    return []


def _devices(c: Config) -> list[str]:
    t = c.trainer
    if t.devices == "auto" or t.total_devices in (None, t.devices * t.nodes):
        return []
    return [
        f"trainer.devices={t.devices} on each of trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} contradict each "
        "other; leave one of them out (trainer.devices=auto, trainer.total_devices=null)."
    ]


def _nesterov(c: Config) -> list[str]:
    if isinstance(c.optimizer, Sgd) and c.optimizer.nesterov and not c.optimizer.momentum:
        return [
            "optimizer.nesterov=true needs a momentum; use optimizer.momentum=0.9 or optimizer.nesterov=false."
        ]
    return []


def _synthetic_size(c: Config) -> list[str]:
    d = c.data
    if not isinstance(d, SyntheticData):
        return []
    sizes = {
        f"data.height={d.height} data.width={d.width} data.channels={d.channels}": d.height
        * d.width
        * d.channels,
        f"data.classes={d.classes} data.height={d.height} data.channels={d.channels}": d.classes
        * d.height
        * d.channels,
    }
    return [
        f"{keys} need {count:,} numbers in memory, and at most {LARGEST_IMAGE:,} are made; use smaller ones."
        for keys, count in sizes.items()
        if count > LARGEST_IMAGE
    ]


def _monitors(c: Config) -> list[str]:
    keys = {
        "checkpoint.monitor": c.checkpoint.monitor,
        "trainer.early_stopping.monitor": c.trainer.early_stopping.monitor,
    }
    return [
        f"{key}={metric} is not a known metric; use one of {', '.join(METRICS)}."
        for key, metric in keys.items()
        if metric not in METRICS
    ]


def _early_stopping(c: Config) -> list[str]:
    stopping, limit = c.trainer.early_stopping, c.trainer.limit_val_batches
    if stopping.patience is None or limit or c.trainer.fast_dev_run:
        return []
    return [
        f"trainer.early_stopping.patience={stopping.patience} counts validations, and trainer.limit_val_batches={limit} leaves "
        "them out; use trainer.limit_val_batches=1.0 or trainer.early_stopping.patience=null."
    ]


def _name(c: Config) -> list[str]:
    if c.name.lower() == "latest":
        return [f"name={c.name} is the name of the link to the newest run; use another one."]
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}", c.name):
        return []
    return [
        f"name={c.name!r} can't name a folder and a job: use up to 100 letters, digits and . _ - = + only, "
        "and begin with a letter or digit."
    ]

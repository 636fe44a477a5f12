"""The configuration, typed: one dataclass per group of `configs/`.

The YAML files hold every default; these classes hold types and meaning. `train_anywhere.config.load` turns the tree that Hydra composed
into a `Config`, or raises one `ConfigError` that lists everything that is wrong with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from train_anywhere.config.checks import strategy_table
from train_anywhere.config.choices import (
    Callback,
    Data,
    FeatureClass,
    Logger,
    Model,
    Optimizer,
    Schedule,
    Strategy,
    Task,
)
from train_anywhere.config.cluster import Cluster, Container, Gpus
from train_anywhere.config.limits import MOST, Count, Range, Span, span
from train_anywhere.config.open_groups import DERIVED
from train_anywhere.config.paths import AbsoluteFolder, NodeFolder, RunFolder
from train_anywhere.config.strict import Choice

_LIMIT = "use a number of batches (10) or a fraction of them (0.1)"
LimitBatches = (
    Annotated[int, Range(at_least=0, at_most=MOST, hint=_LIMIT)]
    | Annotated[float, Range(at_least=0, at_most=1, hint=_LIMIT)]
)
"""A number of batches (int) or a fraction of an epoch (float, 0 to 1), as `limit_train_batches` is read."""

SomeBatches = (
    Annotated[int, Range(at_least=1, at_most=MOST, hint=_LIMIT)]
    | Annotated[float, Range(above=0, at_most=1, hint=_LIMIT)]
)
"""The same, but at least one batch."""

DetectNan = Literal["warn", "stop", "replay", "off"]
"""What a loss of nan or inf does, see training/nan_watch.py and replay.py."""

MOST_NODES, MOST_DEVICES = 100_000, 2**20
Nodes = Annotated[int, Range(at_least=1, at_most=MOST_NODES)]


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by `min_delta` for `patience` validations; patience null: never."""

    patience: Annotated[int, Range(at_least=0, at_most=MOST)] | None
    monitor: str | None  # null: the loss of the validation
    mode: Literal["min", "max"] | None
    min_delta: Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class Trainer:
    """The loop, in the same words for each framework."""

    nodes: Nodes | Annotated[str, Span(MOST_NODES)]  # 2-4: as many of them as there are
    devices: Gpus | Literal["auto"]  # processes = GPUs per node
    # over all nodes; an uneven job if it is not a multiple of nodes; 6-16: with `devices`, a range of nodes
    total_devices: (
        Annotated[int, Range(at_least=1, at_most=MOST_DEVICES)] | Annotated[str, Span(MOST_DEVICES)] | None
    )
    accelerator: Literal["auto", "cpu", "gpu", "mps"]
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
    detect_nan: DetectNan
    early_stopping: EarlyStopping
    compile: bool  # the network, for its device: see docs/performance.md
    tf32: bool  # how GPUs multiply float32 matrices
    fast_step: bool  # lightning: skip hooks that nothing overrides; false: Lightning's own loop
    channels_last: bool  # memory format of the weights of convolutions, and so of what these compute
    find_unused_parameters: (
        bool | None
    )  # ddp: look in each step for weights without a gradient; null: if the module steps by hand
    sync_batchnorm: bool  # batch normalisation is over the whole batch, see docs/strategies.md

    @property
    def span(self) -> tuple[int, int]:
        """The fewest and the most nodes; of a range of `total_devices`, as many as have so many with `devices` each."""
        if isinstance(self.total_devices, str) and self.devices != "auto":
            least, most = span(self.total_devices)
            return -(-least // self.devices), max(1, most // self.devices)
        return span(self.nodes)

    @property
    def most_nodes(self) -> int:
        """How many nodes, or the most of a range."""
        return self.span[1]


@dataclass(frozen=True)
class Checkpoint:
    """When a checkpoint is written, where first, and which are kept."""

    every_n_epochs: Count
    every_n_steps: Count | None
    every_n_seconds: Annotated[float, Range(above=0, hint="null turns it off")] | None
    # auto: from the measured cost of a checkpoint, see features/interval/interval.py
    interval: Literal["auto"] | None
    local: NodeFolder | None  # auto, a folder on the node's disk, or null: straight into the run folder
    monitor: str | None  # metric that says which checkpoint is best; null: the task's own
    mode: Literal["min", "max"] | None  # null: what the task or its name says
    keep_last: Count
    keep_every_n_epochs: Count | None
    # what on_save_checkpoint adds and is not plain data; null: left out, unless an on_load_checkpoint may need it
    other_objects: Literal["leave_out", "refuse"] | None


@dataclass(frozen=True)
class Init:
    """Another run whose weights the training begins with; `init=RUN` is short for `init.run=RUN`."""

    run: RunFolder | None
    checkpoint: Literal["best", "newest"] | Count  # a step
    strict: bool  # false: take those weights whose names and shapes fit


@dataclass(frozen=True)
class Monitor:
    """What is written for people to look at."""

    tensorboard: bool
    csv: bool  # metrics.csv
    progress: Literal["auto", "bar", "plain", "none"]  # auto: a bar on a terminal, else plain lines
    compare_weights_every_n_epochs: Count | None  # over ranks and devices; null: at the end alone
    report: bool  # report.html at the end of each attempt
    ranks: bool  # each rank says at its start who and where it is, at its end which weights it has
    # time between two samples of each node's CPUs and GPUs, see features/sampler/sampler.py; null: none
    sample_seconds: Annotated[float, Range(at_least=0.1, at_most=3600, hint="null turns it off")] | None
    serve: bool  # a TensorBoard server on the first node
    dashboard: str | None  # a command that serves a page at {port} on the first node
    serve_address: str | None  # where they listen; null: loopback, which a tunnel reaches
    # time without a step after which a rank counts as hung; null: it is never looked for
    hang_minutes: Annotated[float, Range(above=0, at_most=MOST, hint="null turns it off")] | None
    hang: Literal["warn", "requeue"]


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
    after: RunFolder | None  # or its id
    trust: bool  # with resume: use what only the run folder brings, see runs/reopen/trust.py
    from_scratch: bool  # with resume: begin again at step 0, what the run has is kept aside
    dry_run: bool | Literal["test"]
    framework: strategy_table.FrameworkName
    launch: strategy_table.LaunchName
    wait: bool
    strategy: Annotated[Strategy, Choice(*get_args(Strategy))]
    cluster: Cluster
    container: Container
    task: Task
    data: Data
    model: Model
    optimizer: Annotated[Optimizer, Choice(*get_args(Optimizer))]
    schedule: Annotated[Schedule, Choice(*get_args(Schedule))]
    callbacks: Mapping[str, Callback]
    loggers: Mapping[str, Logger]
    features: Mapping[str, FeatureClass]
    trainer: Trainer
    checkpoint: Checkpoint
    init: Init
    monitor: Monitor
    paths: Paths
    written: Mapping[str, Any] = field(default_factory=dict, metadata=DERIVED)

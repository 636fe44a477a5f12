"""The typed configuration: one dataclass per group of `configs/`.

The YAML files hold the defaults, these classes hold types and meaning. `train_anywhere.config.load` converts the tree that Hydra composes
to a `Config`, or raises one `ConfigError` with all problems.
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
from train_anywhere.config.limits import MAX_COUNT, Count, Duration, Range, Span, span_bounds
from train_anywhere.config.open_groups import DERIVED
from train_anywhere.config.paths import AbsoluteFolder, NodeFolder, RunFolder
from train_anywhere.config.strict import Choice

_LIMIT = "use a number of batches (10) or a fraction of them (0.1)"
LimitBatches = (
    Annotated[int, Range(at_least=0, at_most=MAX_COUNT, hint=_LIMIT)]
    | Annotated[float, Range(at_least=0, at_most=1, hint=_LIMIT)]
)
"""A number of batches (int) or a fraction of an epoch (float, 0 to 1)."""

AtLeastOneBatch = (
    Annotated[int, Range(at_least=1, at_most=MAX_COUNT, hint=_LIMIT)]
    | Annotated[float, Range(above=0, at_most=1, hint=_LIMIT)]
)
"""Like `LimitBatches`, but at least one batch."""

_INTERVAL = "use a number of optimizer steps (100) or a fraction of an epoch (0.25)"
ValidationInterval = (
    Annotated[int, Range(at_least=1, at_most=MAX_COUNT, hint=_INTERVAL)]
    | Annotated[float, Range(above=0, at_most=1, hint=_INTERVAL)]
)
"""Optimizer steps (int) or a fraction of an epoch (float) between two validations."""

DetectNan = Literal["warn", "stop", "off"]
"""The reaction to a loss of nan or inf, see features/nan_watch."""

MAX_NODES, MAX_DEVICES = 100_000, 2**20
Nodes = Annotated[int, Range(at_least=1, at_most=MAX_NODES)]


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by `min_delta` for `patience` validations; null turns it off."""

    patience: Annotated[int, Range(at_least=0, at_most=MAX_COUNT)] | None
    monitor: str | None  # null: the validation loss
    mode: Literal["min", "max"] | None
    min_delta: Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class Trainer:
    """The training loop, with the same keys for each framework."""

    nodes: Nodes | Annotated[str, Span(MAX_NODES)]  # 2-4: as many as are free
    devices: Gpus | Literal["auto"]  # per node; one process each
    # over all nodes; nodes may get unequal numbers; 6-16 with `devices` is a range of nodes
    total_devices: (
        Annotated[int, Range(at_least=1, at_most=MAX_DEVICES)] | Annotated[str, Span(MAX_DEVICES)] | None
    )
    accelerator: Literal["auto", "cpu", "gpu", "mps"]
    precision: Literal["32", "bf16-mixed", "16-mixed"]
    max_epochs: Count
    min_epochs: Count | None  # early stopping waits for them
    max_steps: Count | None  # optimizer steps; null: no limit
    max_time: Annotated[str, Duration()] | None  # of training, over all attempts of the run
    limit_train_batches: AtLeastOneBatch
    limit_val_batches: LimitBatches
    limit_test_batches: LimitBatches
    overfit_batches: AtLeastOneBatch | None  # train and validate only on these, not shuffled
    fast_dev_run: bool  # one batch of each loop, without logs and checkpoints
    accumulate_grad_batches: Count
    gradient_clip_val: Annotated[float, Range(above=0, hint="null turns clipping off")] | None  # global norm
    gradient_clip_algorithm: Literal["norm", "value"]
    check_val_every_n_epoch: Count | None  # null: `val_check_interval` counts over epochs
    val_check_interval: ValidationInterval
    num_sanity_val_steps: Annotated[int, Range(at_least=-1, at_most=MAX_COUNT)]  # before training; -1: all
    log_every_n_steps: Count
    detect_nan: DetectNan
    early_stopping: EarlyStopping
    deterministic: bool  # only deterministic operations; an error if an operation has none
    compile: bool  # compile the network, see docs/concepts/performance.md
    tf32: bool  # multiply float32 matrices in TF32 on GPUs
    profiler: Annotated[str, Span(MAX_COUNT)] | None  # steps that rank 0 profiles
    fast_step: bool  # lightning: call only overridden hooks; false: Lightning's loop
    channels_last: bool  # memory format of convolution weights and outputs
    # ddp: search each step for weights without a gradient; null: only with manual optimization
    find_unused_parameters: bool | None
    sync_batchnorm: bool  # normalize over the batches of all ranks, see docs/concepts/strategies.md
    extra: Mapping[str, Any]  # lightning: more arguments of its Trainer

    @property
    def node_range(self) -> tuple[int, int]:
        """The smallest and largest number of nodes; a range of `total_devices` is divided by `devices`."""
        if isinstance(self.total_devices, str) and self.devices != "auto":
            least, most = span_bounds(self.total_devices)
            return -(-least // self.devices), max(1, most // self.devices)
        return span_bounds(self.nodes)

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes."""
        return self.node_range[1]


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written, where first, and which are kept."""

    every_n_epochs: Count | None
    every_n_steps: Count | None
    every_n_seconds: Annotated[float, Range(above=0, hint="null turns it off")] | None
    # auto: from the measured cost of a checkpoint, see features/interval/interval.py
    interval: Literal["auto"] | None
    local: NodeFolder | None  # auto, a folder on the node's disk, or null: directly into the run folder
    monitor: str | None  # metric of the best checkpoint; null: the task's headline
    mode: Literal["min", "max"] | None  # null: known from the task, or from the metric's name
    keep_last: Count
    keep_every_n_epochs: Count | None
    # objects from on_save_checkpoint that are not plain data; null: left out, unless an on_load_checkpoint may need them
    other_objects: Literal["leave_out", "refuse"] | None


@dataclass(frozen=True)
class Init:
    """Another run whose weights the training starts with; `init=RUN` is short for `init.run=RUN`."""

    run: RunFolder | None
    checkpoint: Literal["best", "newest"] | Count  # a step
    strict: bool  # false: use only weights whose names and shapes match


@dataclass(frozen=True)
class Monitor:
    """Logs, reports and servers for people."""

    tensorboard: bool
    csv: bool  # metrics.csv
    progress: Literal["auto", "bar", "plain", "none"]  # auto: a bar on a terminal, else plain lines
    compare_weights_every_n_epochs: Count | None  # over ranks and devices; null: only at the end
    report: bool  # report.html at the end of each attempt
    ranks: bool  # each rank records its host at the start and a checksum of its weights at the end
    # time between two samples of a node's CPUs and GPUs, see features/sampler/sampler.py; null: none
    sample_seconds: Annotated[float, Range(at_least=0.1, at_most=3600, hint="null turns it off")] | None
    serve: bool  # a TensorBoard server on the first node
    dashboard: str | None  # command of a web server at {port} on the first node
    serve_address: str | None  # address of the servers; null: loopback, for ssh tunnels
    # time without a step after which a rank counts as hung; null: off
    hang_minutes: Annotated[float, Range(above=0, at_most=MAX_COUNT, hint="null turns it off")] | None
    hang: Literal["warn", "requeue"]
    idle: Literal["off", "warn", "stop"]  # the reaction to GPUs that do nothing, see features/idle
    notify: str | None  # shell command or webhook, see features/notify


@dataclass(frozen=True)
class Paths:
    """Folders; relative ones are below the project's folder."""

    results: AbsoluteFolder  # run folders
    data: AbsoluteFolder  # data sets


@dataclass(frozen=True)
class Config:
    """The complete, read-only configuration of one run. Derived values are computed where they are needed.

    Attributes:
        written: the original strings of values that changed: {'checkpoint.local': '~/ckpt', 'data.token': '${oc.env:TOKEN}'}.
            A run folder holds these strings: each rank evaluates them on its node, and a value may be a secret.
    """

    name: str
    seed: Annotated[int, Range(at_least=0, at_most=2**32 - 1)]  # the range of numpy's generators
    resume: str | None
    after: RunFolder | None  # a run folder or a run id
    trust: bool  # with resume: use values that only the run folder has, see runs/reopen/trust.py
    from_scratch: bool  # with resume: restart at step 0; results so far are kept aside
    dry_run: bool | Literal["test"]
    framework: strategy_table.FrameworkName
    launch: strategy_table.LaunchName
    wait: bool
    program: list[Any]  # strings, which may be empty: see train_anywhere.program
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

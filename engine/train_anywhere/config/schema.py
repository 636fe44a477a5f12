"""The typed configuration: each key with its type, limits, default and meaning.

Defaults of a choice, such as those of `optimizer=sgd`, are in its file below configs/. `train_anywhere.config.load` converts the tree
that Hydra composes to a `Config`, or raises one `ConfigError` with all problems.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from train_anywhere.config.checks import strategy_table
from train_anywhere.config.choices import Data, Model, Optimizer, Schedule, Strategy, Task
from train_anywhere.config.cluster import Cluster, Container, Gpus
from train_anywhere.config.keys import CHOICE, DERIVED, OpenSection, key, section
from train_anywhere.config.limits import MAX_COUNT, Count, Duration, Range, Span, span_bounds
from train_anywhere.config.paths import AbsoluteFolder, NodeFolder, RunFolder

_LIMIT = "use a number of batches (10) or a fraction (0.1)"
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

Epochs = Literal[-1] | Count
"""A number of epochs; -1: no limit."""

DetectNan = Literal["warn", "stop", "off"]
"""The reaction to a loss of nan or inf, see features/observers.py."""

TimeOrOff = Annotated[float, Range(above=0, at_most=MAX_COUNT, hint="null turns it off")]
Seed = Annotated[int, Range(at_least=0, at_most=2**32 - 1)]
Mode = Literal["min", "max"]
MAX_NODES, MAX_DEVICES = 100_000, 2**20
Nodes = Annotated[int, Range(at_least=1, at_most=MAX_NODES)] | Annotated[str, Span(MAX_NODES)]
TotalDevices = Annotated[int, Range(at_least=1, at_most=MAX_DEVICES)] | Annotated[str, Span(MAX_DEVICES)]


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by `min_delta` for `patience` validations."""

    patience: Annotated[int, Range(at_least=0, at_most=MAX_COUNT)] | None = key(
        None, "validations without improvement before training stops; null: never stop early"
    )
    monitor: str | None = key(None, "metric to watch; null: the validation loss")
    mode: Mode | None = key(None, "min | max; null: taken from the task or the metric's name")
    min_delta: Annotated[float, Range(at_least=0)] = key(0.0, "smallest change that counts as an improvement")


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The training loop, with the same keys for each framework."""

    nodes: Nodes = key(1, "number of nodes; 2-4: start with as many as are free, and continue if a node dies")
    devices: Gpus | Literal["auto"] = key(
        "auto", "processes (= GPUs) per node; auto: all GPUs of this machine, or of a node of the preset"
    )
    total_devices: TotalDevices | None = key(
        None,
        "devices of all nodes: 3 with nodes=2, or 6-16 with devices=2: 3 to 8 nodes; null: nodes * devices",
    )
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = key(
        "auto", "hardware to train on: auto | cpu | gpu | mps (the GPU of a Mac, Lightning only)"
    )
    precision: Literal["32", "bf16-mixed", "16-mixed", "32-true", "64-true", "bf16-true", "16-true"] = key(
        32,
        "bits of a number: 32 | bf16-mixed | 16-mixed (weights in 32); Lightning: 64-true | bf16-true | 16-true",
    )
    max_epochs: Epochs = key(15, "stop after this many epochs; -1: no limit")
    min_epochs: Count | None = key(None, "early stopping does not end the run before; null: no minimum")
    min_steps: Count | None = key(None, "the same in optimizer steps; null: no minimum")
    max_steps: Count | None = key(None, "stop after this many optimizer steps; null: no limit")
    max_time: Annotated[str, Duration()] | None = key(
        None, 'end after this training time of all attempts: "DD:HH:MM:SS" or "HH:MM:SS"; null: no limit'
    )
    limit_train_batches: AtLeastOneBatch = key(1.0, "per epoch: a number of batches (10) or a fraction (0.1)")
    limit_val_batches: LimitBatches = key(1.0, "the same for validation; 0: none")
    limit_test_batches: LimitBatches = key(1.0, "the same for the test; 0: none")
    overfit_batches: AtLeastOneBatch | None = key(
        None, "a number of batches or a fraction: train and validate on these only, in the same order"
    )
    fast_dev_run: bool = key(False, "true: one batch of each loop, to check that it runs")
    accumulate_grad_batches: Count = key(1, "gradient accumulation: batches per optimizer step")
    micro_batch: Count | None = key(
        None,
        "rows of all ranks that are computed at once: data.batch_size is divided into such parts; null: all of it",
    )
    gradient_clip_val: Annotated[float, Range(above=0, hint="null turns clipping off")] | None = key(
        None, "gradient clipping: largest norm, or value, of the gradients; null: no clipping"
    )
    gradient_clip_algorithm: Literal["norm", "value"] = key(
        "norm", "what is clipped: norm (of all gradients) | value (of each)"
    )
    check_val_every_n_epoch: Count | None = key(
        1, "epochs between two validations; null: val_check_interval counts steps over epochs"
    )
    val_check_interval: ValidationInterval = key(
        1.0, "validate within an epoch: after each fraction of it (0.25) or number of optimizer steps (100)"
    )
    num_sanity_val_steps: Annotated[int, Range(at_least=-1, at_most=MAX_COUNT)] = key(
        0, "lightning: validation batches to run before training, to find faults in it early; -1: all"
    )
    log_every_n_steps: Count = key(20, "optimizer steps between two rows of metrics")
    detect_nan: DetectNan = key("warn", "what a loss of nan or inf does: warn | stop | off")
    early_stopping: EarlyStopping
    deterministic: bool = key(False, "true: only deterministic operations, else an error; slower")
    compile: bool = key(False, "true: compile the network: the first step is slow, later ones are faster")
    tf32: bool = key(True, "true: GPUs multiply float32 with 10 bits of mantissa, faster; false: with 23")
    profiler: Annotated[str, Span(MAX_COUNT)] | None = key(
        None, "optimizer steps that rank 0 profiles, such as 10-20; a run that trains: `jobs.py profile`"
    )
    channels_last: bool = key(False, "true: channels-last memory format of convolutions, faster in 16 bits")
    find_unused_parameters: bool | None = key(
        None, "ddp, true: a step may use only some weights; null: true with manual optimization only"
    )
    sync_batchnorm: bool = key(False, "true: batch normalisation over rows of all ranks; false: of each rank")
    extra: Mapping[str, Any] = key(
        {},
        "arguments of Lightning's Trainer, such as extra.benchmark=true; those of Keras' fit: docs/how-to/keras-fit.md",
    )

    @property
    def epoch_limit(self) -> int:
        """The largest number of epochs, also without a limit."""
        return MAX_COUNT if self.max_epochs == -1 else self.max_epochs

    def is_too_early(self, epochs: int, steps: int) -> bool:
        """Return whether early stopping may not end the run yet, after this many epochs and optimizer steps."""
        return epochs < (self.min_epochs or 0) or steps < (self.min_steps or 0)

    @property
    def node_range(self) -> tuple[int, int]:
        """The smallest and largest number of nodes, from a range of nodes or devices."""
        if isinstance(self.total_devices, str) and self.devices != "auto":
            least, most = span_bounds(self.total_devices)
            return -(-least // self.devices), max(1, most // self.devices)
        return span_bounds(self.nodes)

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes."""
        return self.node_range[1]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When checkpoints are written, where first, and which are kept."""

    every_n_epochs: Count | None = key(1, "epochs between two checkpoints")
    every_n_steps: Count | None = key(None, "optimizer steps between two checkpoints; null: off")
    every_n_seconds: TimeOrOff | None = key(None, "seconds between two checkpoints; null: off")
    interval: Literal["auto"] | None = key(None, "auto: as often as it costs up to 1 % of time; null: off")
    local: NodeFolder | None = key(
        "auto", "folder to write first, copied in the background; auto: the node's disk; null: the run folder"
    )
    monitor: str | None = key(
        None, "metric of the best checkpoint, kept and tested; null: the task's headline"
    )
    mode: Mode | None = key(None, "min | max; null: taken from the task or the metric's name")
    keep_last: Count = key(2, "number of newest checkpoints to keep, in addition to the best one")
    keep_every_n_epochs: Count | None = key(None, "keep the checkpoint of every n-th epoch too; null: off")
    other_objects: Literal["leave_out", "refuse"] | None = key(
        None,
        "what on_save_checkpoint adds besides data: leave_out | refuse; null: with on_load_checkpoint, refuse",
    )


@dataclass(frozen=True, kw_only=True)
class Init:
    """Another run whose weights the training starts with, as in `init=RUN`."""

    run: RunFolder | None = key(
        None, "run folder of the same framework, or FILE.safetensors, FILE.ckpt, FILE.pt; null: new weights"
    )
    checkpoint: Literal["best", "newest"] | Count = key("best", "checkpoint to load: best | newest | a step")
    strict: bool = key(True, "false: load only weights whose names and shapes match, and list the others")


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Logs, reports and servers for people."""

    tensorboard: bool = key(True, "true: write TensorBoard event files")
    csv: bool = key(True, "true: write metrics.csv")
    progress: Literal["auto", "bar", "plain", "none"] = key(
        "auto", "progress of training: auto | bar | plain | none; auto: a bar on a terminal, else plain lines"
    )
    compare_weights_every_n_epochs: Count | None = key(
        None, "epochs between two checks that all ranks have the same weights; null: only at the end"
    )
    report: bool = key(True, "true: write report.html at the end: curves, where the time went, problems")
    ranks: bool = key(False, "true: ranks print their hosts at the start and checksums of weights at the end")
    sample_seconds: Annotated[float, Range(at_least=0.1, at_most=3600, hint="null turns it off")] | None = (
        key(10, "seconds between two samples of each node's CPUs and GPUs; null: off")
    )
    serve: bool = key(False, "true: run a TensorBoard server on the first node during the job")
    dashboard: str | None = key(None, 'web server to run on the first node: "nvdashboard {port}"; null: none')
    serve_address: str | None = key(None, "address of both servers; null: loopback, for an SSH tunnel")
    hang_minutes: TimeOrOff | None = key(30, "minutes without a step before a rank counts as hung; null: off")
    hang: Literal["warn", "requeue"] = key("warn", "what to do about a hung job: warn | requeue")
    idle: Literal["off", "warn"] = key("warn", "print a line when GPUs do nothing for 15 minutes: warn | off")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that `src/run.py` starts instead of a training. A training has no command, and is false."""

    command: list[Any] = key([], "set by src/run.py: the words of the command")
    copied: str | None = key(None, "set by src/run.py: folder outside of the project that a job copies")
    folder: str | None = key(
        None,
        "working folder and first module path; null: the current folder, in a job the copy of the project",
    )
    processes: Literal["auto", "rank", "node", "one"] = key(
        "auto",
        "rank: one per device | node: one per node, with all its GPUs | one: in all | auto: see any-program.md",
    )
    metrics: str | None = key(
        None,
        "regular expression whose named groups are the step and the metrics in a printed line; null: none",
    )
    resume_args: str | None = key(
        None,
        "arguments to add from the second start on, if the folder of checkpoints is not empty; null: none",
    )

    def __bool__(self) -> bool:
        """Return whether there is a command."""
        return bool(self.command)


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Folders. Relative ones are below the project's folder."""

    results: AbsoluteFolder = key("results", "folder of the run folders")
    data: AbsoluteFolder = key("data", "folder of the data sets")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The complete, read-only configuration of one run.

    Attributes:
        written: the original strings of values that changed: {'checkpoint.local': '~/ckpt', 'data.token': '${oc.env:TOKEN}'}.
            A run folder holds these strings: each rank evaluates them on its node, and a value may be a secret.
    """

    task: Task
    data: Data = field(metadata=CHOICE)
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    strategy: Strategy
    container: Container = field(metadata=CHOICE)
    name: str = key("${data_name:}", "folder below results/, and the name of the job")
    note: str | None = key(None, "your words about the run, for its report and its status")
    seed: Seed = key(1, "for the weights, data order, augmentation and dropout")
    framework: strategy_table.FrameworkName = key("lightning", "whose loop and layers run: lightning | keras")
    launch: strategy_table.LaunchName = key(
        "auto",
        "what starts the ranks: auto | srun | torchrun | mpirun | horovodrun (docs/concepts/strategies.md)",
    )
    train: str | None = key(
        None,
        "the function that trains, such as src.train.train; null: the engine's own order (docs/how-to/own-loop.md)",
    )
    program: Program = section("a program in place of a training: src/run.py")
    args: Mapping[str, Any] = key({}, "src/run.py: values for {args.NAME} in the arguments of the program")
    wait: bool = key(False, "true: a submission waits until its jobs end")
    resume: str | None = key(None, "run folder to continue; null: a new run")
    study: str | None = key(None, "the search that this run is a trial of, set by hydra/sweeper=optuna")
    after: RunFolder | None = key(None, "run or sweep to be complete before this job starts; null: none")
    trust: bool = key(
        False,
        "true, with resume=: also use code that only the run folder names, see docs/concepts/security.md",
    )
    from_scratch: bool = key(False, "true, with resume=: start at step 0 again; old results are kept aside")
    dry_run: bool | Literal["test"] = key(
        False, "true: show what would run and write nothing; test: also let the scheduler check the job"
    )
    features: Mapping[str, OpenSection] = key(
        {}, "your features: features.mine._target_=src.features.mine.Mine (docs/how-to/add-a-feature.md)"
    )
    callbacks: Mapping[str, OpenSection] = key(
        {}, "callbacks of the framework: callbacks.a._target_=mine.Watch"
    )
    loggers: Mapping[str, OpenSection] = key(
        {}, "besides metrics.csv and TensorBoard: loggers=wandb or mlflow"
    )
    trainer: Trainer
    checkpoint: Checkpoint
    init: Init = section("start with the weights of another run; init=RUN is short for init.run=RUN")
    monitor: Monitor
    cluster: Cluster = section("what a job requests; presets in configs/cluster/ set what a site needs")
    paths: Paths
    written: Mapping[str, Any] = field(default_factory=dict, metadata=DERIVED)

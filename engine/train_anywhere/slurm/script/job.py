"""Everything that one job needs, resolved: each number in the script, the site rules and the dry run.

Config (what the user asked for)  ->  make_job  ->  Job (what the scheduler is asked for)  ->  render  ->  the script
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.config.cluster import Cluster, Container, NodeType
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import lay_out, support
from train_anywhere.errors import ConfigError
from train_anywhere.features import Features
from train_anywhere.files.typed_paths import with_links
from train_anywhere.slurm.script import clean_environment, readable, units

CPUS_OF_UNKNOWN_NODES = 4
"""CPUs per rank where neither the user nor the preset says how many a node has: enough to feed one GPU."""


@dataclass(frozen=True)
class Job:
    """One job, or one array of jobs that differ in nothing that the scheduler sees.

    Attributes:
        name: of the job.
        cluster: options that are passed on unchanged: account, partition, modules, ...
        node: the kind of node it will get, where the preset knows.
        ranks: ranks on each node; (2, 1) is an uneven job.
        devices: GPUs (or CPU processes) on each node; differs from `ranks` where one rank drives several GPUs.
        gpus: whether GPUs are asked for.
        cpus_per_task: for each rank.
        mem: per node in MiB, 0 for all of it, or None to leave it to the scheduler.
        time: limit in seconds, 0 for none at all, or None: the default of the scheduler.
        constraint: features joined by &, or None.
        launch: one of `LAUNCHERS`.
        container: what the ranks run in.
        python: the interpreter of the ranks, as the script writes it.
        run: the run folder; of an array without its "-<member>" at the end.
        code: folder of the code snapshot.
        mounts: folders that a container must see.
        fewest: nodes; less than there are `ranks` for where Slurm may start it with fewer.
        members: numbers of the members of an array; None for a single job.
        batch: samples in one batch over all ranks.
        framework, strategy: for people to read.
        program: what one process runs instead of a training, below the code, with its arguments; quoted for the shell.
        features: optional features of the run, with their settings.
    """

    name: str
    cluster: Cluster
    node: NodeType | None
    ranks: tuple[int, ...]
    devices: tuple[int, ...]
    gpus: bool
    cpus_per_task: int
    mem: int | None
    time: int | None
    constraint: str | None
    launch: str
    container: Container
    python: str
    run: str
    code: str
    mounts: tuple[str, ...]
    members: tuple[int, ...] | None
    batch: int
    framework: str
    strategy: str
    fewest: int
    program: str = ""
    features: Features = field(default_factory=Features)

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return len(self.ranks)

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return sum(self.ranks)

    @property
    def even(self) -> bool:
        """Whether every node has as many ranks as the others."""
        return len(set(self.devices)) == 1

    @property
    def elastic(self) -> bool:
        """Whether it may start with fewer nodes, and go on with fewer."""
        return self.fewest < self.nodes

    @property
    def tasks(self) -> int:
        """Tasks that the scheduler starts: one per rank, or one per node where its launcher starts the ranks.

        An uneven job always has one per rank: that is what makes the scheduler place as many GPUs as ranks. An elastic one has one
        per node: with a number of tasks Slurm gives it the fewest nodes that hold them.
        """
        if self.launch == "torchrun" and self.even:
            return self.nodes
        return self.nodes if self.elastic else self.world_size

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node of an even job."""
        return self.tasks // self.nodes

    @property
    def cpus_of_task(self) -> int:
        """CPUs of one of `tasks`."""
        return self.cpus_per_task * (self.world_size // self.tasks)


def make_job(config: Config, run: str, code: str, members: Sequence[int] | None = None) -> Job:
    """Resolve a configuration into a job.

    Args:
        config: of one run, or of the first member of an array.
        run: absolute path of the run folder (of an array: the part that all members share).
        code: absolute path of the code snapshot.
        members: numbers of an array's members.

    Raises:
        ConfigError: where a time, size or pattern can't be read at all; what the site forbids is left to `train_anywhere.slurm.rules`.
    """
    c = config.cluster
    if unreadable := readable.problems(c):
        raise ConfigError(*unreadable)
    layout = lay_out(config, devices_per_node(config))
    most = max(layout.devices)
    node = node_type(c, most)
    return Job(
        name=config.name,
        cluster=clean_environment.with_options_of_shell(c),
        node=node,
        ranks=layout.ranks,
        devices=layout.devices,
        gpus=config.trainer.accelerator != "cpu",
        cpus_per_task=_cpus(c, node) * (most // max(layout.ranks)),
        mem=_memory(c, node, most),
        time=None if c.time is None else units.seconds(c.time),
        constraint=constraint(c),
        launch=launch_method(config, layout.strategy),
        container=config.container,
        python=interpreter(config),
        run=run,
        code=code,
        mounts=_mounts(config),
        members=tuple(members) if members is not None else None,
        batch=config.data.batch_size,
        framework=config.framework,
        strategy=layout.strategy,
        fewest=config.trainer.span[0],
        features=Features.of(config),
    )


def devices_per_node(config: Config) -> tuple[int, ...]:
    """GPUs on each of the most nodes: `trainer.devices` on all, or `trainer.total_devices` spread so that the first nodes get more.

    `auto` is the whole node where the preset knows it, else 1; with strategy=single it is 1.
    """
    t, nodes = config.trainer, config.trainer.most_nodes
    if isinstance(t.total_devices, int):
        each, more = divmod(t.total_devices, nodes)
        return tuple(each + (i < more) for i in range(nodes))
    if t.devices != "auto":
        return (t.devices,) * nodes
    node = node_type(config.cluster, 1)
    return (node.gpus if node and config.strategy.name != "single" else 1,) * nodes


def node_type(cluster: Cluster, devices: int) -> NodeType | None:
    """The first kind of node that fits the partition, the GPU type and the number of GPUs; else the largest that nearly does."""
    fits = [
        n
        for n in cluster.site.nodes
        if (n.partition is None or n.partition == cluster.partition)
        and (n.gpu_type is None or cluster.gpu_type is None or n.gpu_type == cluster.gpu_type)
    ]
    enough = [n for n in fits if n.gpus >= devices]
    return enough[0] if enough else max(fits, key=lambda n: n.gpus, default=None)


def launch_method(config: Config, strategy: str) -> str:
    """`launch`, or what `auto` means: the preset's method if the strategy knows it, else the strategy's first."""
    if config.launch != "auto":
        return config.launch
    able = support(config.framework, strategy)
    known = able.launch if able.ranks else LAUNCHERS
    usable = [m for m in known if config.cluster.scheduler != "pbs" or m != "srun"]
    return config.cluster.launch if config.cluster.launch in usable or not usable else usable[0]


def constraint(cluster: Cluster) -> str | None:
    """All features at once: of two --constraint lines only the last would count."""
    wanted = cluster.constraint
    features = [wanted] if isinstance(wanted, str) else wanted or []
    if len(features) > 1:  # a | b inside a list needs brackets to be joined
        features = [f"({f})" if "|" in f and f[0] not in "[(" else f for f in features]
    return "&".join(dict.fromkeys(features)) or None


def interpreter(config: Config) -> str:
    """The Python of the ranks: the container's, the activated environment's, else the one that submits."""
    if config.container.name != "none":
        return config.container.python
    return "python" if config.cluster.conda or config.cluster.venv else str(with_links(Path(sys.executable)))


def _cpus(c: Cluster, node: NodeType | None) -> int:
    if c.cpus_per_task is not None:
        return c.cpus_per_task
    return max(1, node.cpus // node.gpus) if node and node.cpus else CPUS_OF_UNKNOWN_NODES


def _memory(c: Cluster, node: NodeType | None, devices: int) -> int | None:
    if c.mem is not None:
        return units.megabytes(c.mem)
    if c.mem_per_gpu is not None:
        return units.megabytes(c.mem_per_gpu) * devices
    if node and node.mem and c.site.takes_mem:
        return min(units.megabytes(node.mem), units.megabytes(node.mem) * devices // node.gpus)
    return None


def _mounts(config: Config) -> tuple[str, ...]:
    """Folders keep their paths inside the container, so that every path of the configuration holds on both sides."""
    if config.container.name == "none":
        return ()
    data = [config.paths.data] if Path(config.paths.data).is_dir() else []
    return (config.paths.results, *data, *config.container.mounts)

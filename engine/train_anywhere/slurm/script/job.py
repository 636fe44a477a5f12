"""Resolve a configuration into a `Job`, which has each number of the script.

Config (the user's request)  ->  make_job  ->  Job (the request to the scheduler)  ->  render  ->  the script
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.config.checks.targets import global_batch
from train_anywhere.config.cluster import SIGNAL_S, Cluster, Container, NodeType
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import Layout, plan_layout, support
from train_anywhere.errors import ConfigError
from train_anywhere.features import Features
from train_anywhere.files.root import restore_links
from train_anywhere.slurm.script import clean_environment, units

CPUS_OF_UNKNOWN_NODES = 4
"""CPUs per rank if neither the user nor the preset gives a number: enough to feed one GPU."""


@dataclass(frozen=True)
class Job:
    """One job, or one array of jobs that are the same for the scheduler.

    Attributes:
        cluster: options that are passed on unchanged: account, partition, modules, ...
        node: the kind of node that the job will get, or None if the preset does not know it.
        layout: the strategy, or how many processes a program of `src/run.py` has, and the numbers of devices and of ranks on each node.
        mem: memory per node in MiB, 0 for all of it, None for the scheduler's default.
        launch: one of `LAUNCHERS`.
        python: the interpreter of the ranks, as written in the script.
        mounts: folders that the container has at the same paths, so that all paths stay valid.
        run: the run folder; for an array, without the "-<member>" at the end.
        members: numbers of the members of an array; None for a single job.
        batch: samples in one batch over all ranks; 0 if each rank has its own.
        framework: name for display; program for a program of `src/run.py`.
        counts: numbers of nodes that share the batch evenly, of those with which Slurm may start the job.
        command: script and arguments of a program that each rank starts instead of training.
    """

    name: str
    cluster: Cluster
    node: NodeType | None
    layout: Layout
    gpus: bool
    cpus_per_task: int
    mem: int | None
    launch: str
    container: Container
    python: str
    run: str
    code: str
    mounts: tuple[str, ...]
    members: tuple[int, ...] | None
    batch: int
    framework: str
    counts: tuple[int, ...]
    command: tuple[str, ...] = ()
    features: Features = field(default_factory=Features)

    @property
    def program(self) -> str:
        """Always empty. Outlines of earlier versions of the template test it."""
        return ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of ranks on each node. (2, 1) is an uneven job."""
        return self.layout.ranks

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of GPUs on each node, more than `ranks` if one rank drives several, less if members share them."""
        return (self.cluster.packed_gpus,) if self.pack > 1 else self.layout.devices

    @property
    def pack(self) -> int:
        """The number of members in one job of an array, each with one rank."""
        return 1 if self.members is None else self.cluster.pack

    @property
    def array(self) -> tuple[int, ...]:
        """The numbers of the array: each is that of the first member of a job."""
        return (self.members or ())[:: self.pack]

    @property
    def cpus_per_node(self) -> int:
        """The number of CPUs on the node with the most ranks."""
        return max(self.ranks) * self.cpus_per_task * self.pack

    @property
    def time(self) -> int | None:
        """The limit in seconds, 0 for no limit, None for the scheduler's default."""
        return None if self.cluster.time is None else units.seconds(self.cluster.time)

    @property
    def constraint(self) -> str | None:
        """Node features joined by &, or None."""
        return join_constraints(self.cluster)

    @property
    def supervisor(self) -> str:
        """The interpreter of the supervisor, outside a container: the one that submits the job."""
        return str(restore_links(Path(sys.executable)))

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.ranks)

    @property
    def world_size(self) -> int:
        """The number of ranks over all nodes."""
        return sum(self.ranks)

    @property
    def even(self) -> bool:
        """True if all nodes have the same number of devices."""
        return len(set(self.devices)) == 1

    @property
    def fewest(self) -> int:
        """The smallest number of nodes, less than `nodes` if the job is elastic."""
        return self.counts[0]

    @property
    def elastic(self) -> bool:
        """True if the job may start, and continue, with fewer nodes."""
        return self.fewest < self.nodes

    @property
    def tasks(self) -> int:
        """The tasks that the scheduler starts: one per rank, or one per node with a launcher.

        An uneven job always has one task per rank, so that the scheduler places as many GPUs as ranks on a node. An elastic job has
        one per node: given a number of tasks, Slurm would allocate the fewest nodes that hold them.
        """
        if self.launch == "torchrun" and self.even:
            return self.nodes
        if self.pack > 1:
            return self.pack
        return self.nodes if self.elastic else self.world_size

    @property
    def tasks_per_node(self) -> int:
        """The number of tasks on each node of an even job."""
        return self.tasks // self.nodes

    @property
    def cpus_of_task(self) -> int:
        """The number of CPUs of one of `tasks`."""
        return self.cpus_per_task * max(1, self.world_size // self.tasks)


def make_job(config: Config, run: str, code: str, members: Sequence[int] | None = None) -> Job:
    """Resolve the configuration of a run, or of the first of the `members` of an array, into a job.

    `run` and `code` are absolute paths of the run folder, of an array the part that all members share, and of the code snapshot.

    Raises ConfigError: a time, size or pattern has a wrong format. `train_anywhere.slurm.rules` checks the limits of the site.
    """
    c = config.cluster
    if unreadable := units.format_problems(c):
        raise ConfigError(*unreadable)
    counts = count_nodes(config)
    if config.trainer.node_range != (counts[0], counts[-1]):
        fitting = replace(config.trainer, nodes=f"{counts[0]}-{counts[-1]}", total_devices=None)
        config = replace(config, trainer=fitting)
    layout = plan_layout(config, devices_per_node(config))
    packed = c.pack if members is not None else 1
    node, cpus, mem = _fit_node(c, layout, packed)
    limits = [seconds for limit in (c.time, c.time_min) if limit and (seconds := units.seconds(limit))]
    warning = min([SIGNAL_S, *(max(1, seconds // 2) for seconds in limits)])
    gpus, inside = config.trainer.accelerator != "cpu", config.container.name != "none"
    folders = [folder for folder in (config.paths.data, c.cache) if folder and os.path.isdir(folder)]
    cluster = clean_environment.fill_account(clean_environment.apply_shell_options(c), gpus)
    return Job(
        name=config.name,
        cluster=replace(cluster, signal_seconds=c.signal_seconds or warning),
        node=node,
        layout=layout,
        gpus=gpus,
        cpus_per_task=cpus,
        mem=mem,
        launch=_launch(config, layout.strategy, packed),
        container=config.container,
        python=interpreter(config.container, c),
        run=run,
        code=code,
        mounts=(config.paths.results, *folders, *config.container.mounts) if inside else (),
        members=tuple(members) if members is not None else None,
        batch=global_batch(config),
        framework="program" if config.program else config.framework,
        counts=counts,
        command=tuple(config.program.command),
        features=Features.of(config),
    )


def _fit_node(c: Cluster, layout: Layout, packed: int) -> tuple[NodeType | None, int, int | None]:
    """Return the kind of node, the CPUs of each rank, and the MiB per node: what is requested, else the share of the devices."""
    most = max(layout.devices) if packed == 1 else c.packed_gpus

    def requested(cpus: int) -> int | None:
        known = {c.mem: 1, c.mem_per_gpu: most, c.mem_per_cpu: cpus}
        return next(
            (units.megabytes(size) * count for size, count in known.items() if size is not None), None
        )

    typed = (c.cpus_per_task or 0) * max(most, packed)
    node = find_node_type(c, most, typed, requested(typed) or 0)
    # CPUs of each device, or of each member of those that are packed into a job
    each = c.cpus_per_task or CPUS_OF_UNKNOWN_NODES
    if c.cpus_per_task is None and node and node.cpus:
        each = max(1, node.cpus * (min(node.gpus, c.packed_gpus) if packed > 1 else 1) // node.gpus // packed)
    each *= 1 if packed > 1 else most // max(layout.ranks)
    mem = requested(each * max(max(layout.ranks), packed))
    if mem is None and node and node.mem and c.site.takes_mem:
        mem = min(whole := units.megabytes(node.mem), whole * most // node.gpus)
    return node, each, mem


def count_nodes(config: Config) -> tuple[int, ...]:
    """Return the numbers of nodes in the range that share the global batch evenly, or all if none does."""
    least, most = config.trainer.node_range
    devices, numbers = max(devices_per_node(config)), range(least, most + 1)
    if config.program.command or least == most:  # the batches of a program are its own
        return (*numbers,)
    return tuple(n for n in numbers if global_batch(config) % (devices * n) == 0) or (*numbers,)


def devices_per_node(config: Config) -> tuple[int, ...]:
    """Return the number of GPUs on each node, for the largest number of nodes.

    That is `trainer.devices` on all nodes, or `trainer.total_devices` spread so that the first nodes get more.
    `auto` means the whole node if the preset knows it, else 1; with strategy=single it means 1.
    """
    t, nodes = config.trainer, config.trainer.max_nodes
    if isinstance(t.total_devices, int):
        each, more = divmod(t.total_devices, nodes)
        return tuple(each + (i < more) for i in range(nodes))
    if t.devices != "auto":
        return (t.devices,) * nodes
    node = find_node_type(config.cluster, 1)
    one = config.strategy.name == "single" or config.cluster.pack > 1
    return (node.gpus if node and not one else 1,) * nodes


def find_node_type(cluster: Cluster, devices: int, cpus: int = 0, mem: int = 0) -> NodeType | None:
    """Return the kind of node that a job gets, or None if the preset does not list it.

    Kinds are those of the partition and of the GPU type, which a constraint may name too. The first with enough GPUs, CPUs and
    memory (MiB) counts, else the first with enough GPUs, else the one with the most. A job in several partitions must fit the
    smallest of their nodes, of which it gets any.
    """
    known = cluster.site.nodes
    partitions = {*(clean_environment.apply_shell_options(cluster).partition or "").split(",")}
    listed = partitions <= {n.partition for n in known}
    words = re.findall(r"[\w.-]+", join_constraints(cluster) or "")
    types = {cluster.gpu_type} if cluster.gpu_type else {n.gpu_type for n in known} & {*words}
    of_type = [n for n in known if n.gpu_type is None or not types or n.gpu_type in types]
    fits = [n for n in of_type if n.partition is None or (listed and n.partition in partitions)]
    enough = [n for n in fits if n.gpus >= devices]
    roomy = [n for n in enough if cpus <= (n.cpus or cpus) and (not n.mem or mem <= units.megabytes(n.mem))]
    if not enough:
        return max(fits, key=lambda n: n.gpus, default=None)
    firsts = {n.partition if len(partitions) > 1 else "": n for n in reversed(roomy or enough)}
    return _smallest(firsts.values())


def _smallest(kinds: Iterable[NodeType]) -> NodeType:
    """Return the least that these kinds of nodes have, with the longest limit."""
    known = sorted(kinds, key=lambda n: (n.gpus, n.cpus or 0))
    cpus = min((n.cpus for n in known if n.cpus), default=None)
    mem = min((n.mem for n in known if n.mem), key=units.megabytes, default=None)
    times = [n.max_time for n in known if n.max_time]
    longest = max(times, key=units.seconds) if len(times) == len(known) else None
    return replace(known[0], cpus=cpus, mem=mem, max_time=longest)


def _launch(config: Config, strategy: str, packed: int) -> str:
    """Return the launch method. Automatic: the preset's method if the strategy supports it, else its first one."""
    c, able = config.cluster, support(config.framework, strategy)
    if config.launch != "auto" or packed > 1:
        return "srun" if config.launch == "auto" else config.launch
    usable = [
        m for m in (able.launch if able.several_nodes else LAUNCHERS) if c.scheduler != "pbs" or m != "srun"
    ]
    return c.launch if c.launch in usable or not usable else usable[0]


def join_constraints(cluster: Cluster) -> str | None:
    """Return all node features in one expression: of several --constraint the last counts."""
    requested = cluster.constraint
    features = [requested] if isinstance(requested, str) else requested or []
    if len(features) > 1:  # `a|b` needs parentheses before it is joined with &
        features = [f"({f})" if "|" in f and not re.search(r"[\[(]", f) else f for f in features]
        # Slurm reads from left to right and refuses nested parentheses: (a&b)|c&d means ((a&b)|c)&d
        features.sort(key=lambda f: "|" not in _outside(f))
    elif features and requested is features:
        # sbatch's [a|b] or [a*2&b*4], which YAML and Hydra read as a list
        operators = {*_outside(features[0])} & {*"|&*"}
        features = [f"[{features[0]}]"] if operators in ({"|"}, {"&", "*"}) else features
    return "&".join(dict.fromkeys(features)) or None


def _outside(constraint: str) -> str:
    """Return the parts of a constraint that are not in parentheses or brackets."""
    return re.sub(r"\(.*?\)|\[.*\]", "", constraint)


def interpreter(container: Container, cluster: Cluster) -> str:
    """Return the Python of the ranks: of the container, of the environment, or this one."""
    if container.name != "none":
        return container.python
    return "python" if cluster.conda or cluster.venv else str(restore_links(Path(sys.executable)))


def count_gpus(job: Job) -> int:
    """Return the GPUs that one job occupies: an exclusive job has all of its nodes."""
    whole = job.node.gpus * job.nodes if job.node and job.cluster.exclusive is True else 0
    return max(whole, sum(job.devices))


def gpu_hours(job: Job) -> tuple[float | None, str]:
    """Return the GPU hours of all jobs until their limits, and how they come about: `8 GPUs x 2:00:00 x 4 jobs`.

    They are None without a limit or GPUs.
    """
    gpus, jobs = count_gpus(job), job.cluster.chain if job.members is None else len(job.array)
    parts = [f"{gpus} GPU{'s'[: gpus > 1]}", units.clock(job.time or 0), f"{jobs} jobs"]
    hours = gpus * job.time / 3600 * jobs if job.gpus and job.time else None
    return hours, " x ".join(parts if jobs > 1 else parts[:2])


def describe_gpu_hours(job: Job) -> str:
    """Return a phrase such as `up to 64 (8 GPUs x 2:00:00 x 4 jobs)`. Empty without GPUs."""
    hours, product = gpu_hours(job)
    if not job.gpus:
        return ""
    if hours is None:
        return "no limit" if job.time == 0 else "not known: cluster.time is not set"
    again = ", and the same after each requeue" if job.cluster.requeue else ""
    return f"up to {format_hours(hours)} ({product}){again}"


def format_hours(hours: float) -> str:
    """Format hours with at most one decimal, but never as 0: `64`, `2.5`, `0.02`."""
    return f"{hours:.1f}".removesuffix(".0") if hours >= 1 else f"{hours:.2g}"

"""The configuration of a cluster: the job's request, and facts about the site."""

from dataclasses import dataclass
from typing import Annotated, Literal

from train_anywhere.config.checks.strategy_table import Launcher
from train_anywhere.config.keys import key, section
from train_anywhere.config.limits import MAX_COUNT, Count, Items, Range
from train_anywhere.config.paths import AbsoluteFolder, Folder, NodeFolder

Gpus = Annotated[int, Range(at_least=1, at_most=1024)]
Cpus = Annotated[int, Range(at_least=1, at_most=2**16)]
_NICE = "only administrators can raise a priority"
SIGNAL_S = 120
"""Default of `cluster.signal_seconds`, if the time limit is at least twice as long."""
Members = Annotated[int, Range(at_least=1, at_most=1024)]
Minutes = Annotated[int, Range(at_least=0, at_most=MAX_COUNT)]


@dataclass(frozen=True)
class NodeType:
    """One kind of node. Unknown values are null and not checked.

    Attributes:
        cpus: CPUs that a job can use on it.
        mem: memory that a job can use on it, such as 512G.
        gpu_type: the scheduler's name for the GPU.
        partition: the partition (or queue) these nodes are in.
        gpu_mem: memory of one GPU, such as 80G.
        max_time: time limit of the longest job on such nodes, if it is not the site's.
        counts: the numbers of GPUs per node that can be requested; null: any.
        about: a warning for jobs on several such nodes, about their network or processor.
    """

    gpus: Gpus
    cpus: Cpus | None = None
    mem: str | None = None
    gpu_type: str | None = None
    partition: str | None = None
    gpu_mem: str | None = None
    max_time: str | None = None
    counts: Annotated[list[Gpus], Items(example="[1,4]")] | None = None
    about: str | None = None


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts and rules of one site, checked before a submission."""

    source: str | None = key(None, "where the facts below are from, such as the address of a page")
    checked: str | None = key(None, "when they were last compared with the source: 2026-11")
    hosts: list[str] = key([], "host names of the login nodes, with * and ?, for cluster=current")
    login: str | None = key(None, "name of a login node as seen from outside, for SSH tunnels")
    nodes: list[NodeType] = key(
        [], "kinds of nodes, the default first: {gpu_type: a100, gpus: 4, cpus: 48, mem: 500G, gpu_mem: 80G}"
    )
    max_time: Minutes | str | None = key(None, "time limit of the longest job")
    max_gpus: Count | None = key(None, "GPUs that one job or user can use at once")
    account: str | None = key(
        None, "regular expression of the usual accounts, if a job must have one; null: a job needs none"
    )
    account_example: str | None = key(None, "example account, shown in messages")
    comment: str | None = key(None, "regular expression that cluster.comment must match; null: any")
    comment_example: str | None = key(None, "example comment, shown in messages")
    takes_mem: bool = key(True, "false: the site sets the memory of a job")
    takes_partition: bool = key(True, "false: the site picks the partition")
    needs_gpu_type: bool = key(False, "true: a job that names no GPU type gets the oldest one")
    submit_below: list[str] = key([], "folders from which jobs can be submitted; empty: any")
    write_below: list[str] = key([], "folders where jobs can write; empty: any")
    not_below: list[str] = key([], 'folders in which a job is killed: ["/home"]; empty: none')
    requeue: bool = key(True, "false: a job can't requeue itself")
    internet: bool = key(True, "false: jobs can't reach the internet")
    notes: list[str] = key([], "lines to print after a submission")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster and the job's request. `cluster=local` runs it on this machine."""

    name: str
    scheduler: Literal["none", "slurm", "pbs"]
    account: str | None = key(None, "account to charge")
    partition: str | None = key(None, "partition of Slurm, queue of PBS")
    qos: str | None = key(None, "quality of service")
    time: Minutes | str | None = key(
        None,
        'time limit: minutes, or in quotes in YAML "24:00:00", "1-12:00:00"; 0: no limit; null: the site\'s default',
    )
    time_min: Minutes | str | None = key(
        None, "shortest limit that Slurm may give the job instead, to start it earlier; null: cluster.time"
    )
    gpu_type: str | None = key(None, "the scheduler's name: a100, v100, ...; null: any")
    gres: str | None = key(None, "generic resources besides GPUs: nvme:100, tmpfs:100g")
    cpus_per_task: Cpus | None = key(None, "CPUs per rank; null: its GPU's share of the node")
    mem: str | None = key(None, "memory per node, such as 180G; null: the GPUs' share; 0: all of it")
    mem_per_gpu: str | None = key(None, "memory per GPU, such as 40G, instead of mem")
    mem_per_cpu: str | None = key(None, "memory per CPU, such as 6G, instead of mem")
    constraint: str | list[str] | None = key(
        None, "node feature, or a list of which all are required; [a|b]: the same one of them on all nodes"
    )
    comment: str | None = key(None, "comment of the job; some sites require one")
    reservation: str | None = key(None, "name of a reservation")
    exclude: str | None = key(None, "nodes to avoid: node3,node[7-9]")
    nodelist: str | None = key(
        None, "nodes that the job must include: node3,node[7-9]; inside an allocation: those to use"
    )
    exclusive: bool | Literal["user"] = key(False, "true: no other jobs on the nodes; user: only your own")
    begin: str | None = key(None, 'earliest start: "20:00", now+2hours, 2026-12-01T08:00; null: now')
    nice: Annotated[int, Range(at_least=1, at_most=2**31 - 3, hint=_NICE)] | None = key(
        None, "lower the priority by this much, from 1; null: unchanged"
    )
    check: Literal["refuse", "warn"] = key(
        "refuse", "a job that the facts in cluster.site forbid: refuse | warn (submit it, and print a note)"
    )
    max_gpu_hours: Annotated[float, Range(above=0, hint="null is no limit")] | None = key(
        None, "refuse a submission that may use more GPU hours; null: no limit"
    )
    mail_user: str | None = key(None, "e-mail address; null: yours at the site")
    mail_type: str | None = key(
        None,
        "events to mail: ALL, or several, quoted for the shell and Hydra: 'cluster.mail_type=\"END,FAIL\"'; null: none",
    )
    extra: list[str] = key([], 'further options of sbatch (qsub), passed unchanged: ["--licenses=x"]')
    gpu_request: Literal["gpus-per-node", "gres", "none"] = key(
        "gpus-per-node",
        "how the site requests GPUs: gpus-per-node | gres | none (a job has all GPUs of its nodes)",
    )
    launch: Launcher = key("srun", "what launch=auto means at this site")
    modules: list[str] = key([], "environment modules to load, after `module purge`")
    conda: Folder | None = key(None, "name or folder of a conda environment")
    venv: Folder | None = key(None, "a virtual environment's folder; null, as conda: the Python that submits")
    setup: list[str] = key([], 'shell lines to run before the ranks start: ["export NCCL_SOCKET_IFNAME=ib0"]')
    local_disk: NodeFolder = key("/tmp", "folder on the node's own disk")
    cache: AbsoluteFolder | None = key(
        None,
        "folder for pretrained weights (HF_HOME, TORCH_HOME, KERAS_HOME) and compiled code; null: those of the libraries",
    )
    requeue: bool = key(True, "true: requeue the job after a time limit or preemption")
    no_kill: bool = key(
        True,
        "a node of an elastic job (nodes=2-4) dies, true: continue on the others; false: requeue the job",
    )
    retries: Annotated[int, Range(at_least=0, at_most=1000)] = key(
        0, "how often failed ranks restart in the same job, from the newest checkpoint"
    )
    signal_seconds: Annotated[int, Range(at_least=1, at_most=65535)] | None = key(
        None, "seconds before the time limit to signal the ranks; null: 120, at most half of the limit"
    )
    chain: Annotated[int, Range(at_least=1, at_most=1000)] = key(
        1, "number of jobs in a row that continue one run, for sites that forbid requeueing"
    )
    max_running: Annotated[int, Range(at_least=1, at_most=MAX_COUNT, hint="null is no limit")] | None = key(
        None, "jobs of a sweep that run at the same time; null: no limit"
    )
    members_per_gpu: Members | None = key(
        None,
        "members of a sweep (-m) that share one GPU, each with its part of the GPU's CPUs and memory; null: 1",
    )
    members_per_node: Members | None = key(
        None, "members of a sweep (-m) that run at once in one job, or on this machine; null: members_per_gpu"
    )
    site: Site = section("facts about the site; details: engine/train_anywhere/config/cluster.py")

    @property
    def pack(self) -> int:
        """The number of members of a sweep in one job; 1 if each has a job of its own."""
        return self.members_per_node or self.members_per_gpu or 1

    @property
    def packed_gpus(self) -> int:
        """The number of GPUs that `pack` members need."""
        return -(-self.pack // (self.members_per_gpu or 1))


@dataclass(frozen=True)
class Container:
    """The container of the ranks, in which the project's folders keep their paths.

    Attributes:
        image: an image file, or, for pyxis, an image of a registry such as nvcr.io#nvidia/pytorch:25.09-py3.
        mounts: more folders, each `path` or `path outside:path inside`; data.dir is an inside path.
        python: the interpreter in the image.
    """

    name: Literal["none", "pyxis", "apptainer"]
    image: Folder | None = key(None)
    mounts: list[Folder] = key([])
    python: str = key("python")

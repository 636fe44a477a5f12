"""The configuration of a cluster: the job's request, its environment, and facts about the site."""

from dataclasses import dataclass
from typing import Annotated, Literal

from train_anywhere.config.checks.strategy_table import Launcher
from train_anywhere.config.limits import MAX_COUNT, Count, Items, Range
from train_anywhere.config.paths import Folder, NodeFolder

Gpus = Annotated[int, Range(at_least=1, at_most=1024)]
Cpus = Annotated[int, Range(at_least=1, at_most=2**16)]
_NICE = "only administrators can raise a priority"
SIGNAL_S = 120
"""Default of `cluster.signal_seconds`, if the time limit is at least twice as long."""
Minutes = Annotated[int, Range(at_least=0, at_most=MAX_COUNT)]


@dataclass(frozen=True)
class NodeType:
    """One kind of node. Unknown values are null and not checked.

    Attributes:
        gpus: GPUs on the node.
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


@dataclass(frozen=True)
class Site:
    """Facts and rules of one site, checked before a submission.

    Attributes:
        source: where these facts are from, such as the address of a page; printed when a job is refused.
        checked: when they were last compared with the source: 2026-11 or 2026-11-26.
        hosts: host names of the login nodes with shell wildcards, for cluster=current.
        login: name of a login node as seen from outside, for the ssh command that reaches TensorBoard.
        nodes: the kinds of nodes, the default first; empty: unknown.
        max_time: time limit of the longest job.
        max_gpus: GPUs that one job (or user) can use at once.
        account: regular expression of the usual accounts; a job must have an account; null: it need not.
        comment: regular expression that `cluster.comment` must match; null: anything.
        account_example, comment_example: valid values, for messages.
        takes_mem: whether a job should request memory; if not, the site sets it.
        takes_partition: whether a job should name a partition; if not, the site picks it.
        needs_gpu_type: whether a job should name a GPU type, because it would get the oldest one otherwise.
        submit_below: a job must be submitted from below one of these folders; $USER is expanded.
        write_below: a job can write below these folders only.
        not_below: a job must not run or write below these folders, where it would be killed.
        requeue: whether a job may requeue itself.
        internet: whether jobs can reach the internet.
        notes: printed after a submission.
    """

    source: str | None
    checked: str | None
    hosts: list[str]
    login: str | None
    nodes: list[NodeType]
    max_time: Minutes | str | None
    max_gpus: Count | None
    account: str | None
    account_example: str | None
    comment: str | None
    comment_example: str | None
    takes_mem: bool
    takes_partition: bool
    needs_gpu_type: bool
    submit_below: list[str]
    write_below: list[str]
    not_below: list[str]
    requeue: bool
    internet: bool
    notes: list[str]


@dataclass(frozen=True)
class Cluster:
    """The cluster of the job and the job's request; `cluster=local` runs it on this machine."""

    name: str
    scheduler: Literal["none", "slurm", "pbs"]
    account: str | None
    partition: str | None
    qos: str | None
    time: Minutes | str | None
    time_min: Minutes | str | None
    gpu_type: str | None
    gres: str | None
    cpus_per_task: Cpus | None
    mem: str | None
    mem_per_gpu: str | None
    constraint: str | list[str] | None
    comment: str | None
    reservation: str | None
    exclude: str | None
    nodelist: str | None
    exclusive: bool | Literal["user"]
    begin: str | None
    nice: Annotated[int, Range(at_least=1, at_most=2**31 - 3, hint=_NICE)] | None  # sbatch's maximum
    check: Literal["refuse", "warn"]
    max_gpu_hours: Annotated[float, Range(above=0, hint="null is no limit")] | None
    mail_user: str | None
    mail_type: str | None
    extra: list[str]
    gpu_request: Literal["gpus-per-node", "gres", "none"]
    launch: Launcher
    modules: list[str]
    conda: Folder | None
    venv: Folder | None
    pack_env: bool
    setup: list[str]
    local_disk: NodeFolder
    requeue: bool
    no_kill: bool
    retries: Annotated[int, Range(at_least=0, at_most=1000)]
    signal_seconds: Annotated[int, Range(at_least=1, at_most=65535)] | None  # sbatch's maximum
    chain: Annotated[int, Range(at_least=1, at_most=1000)]
    max_running: Annotated[int, Range(at_least=1, at_most=MAX_COUNT, hint="null is no limit")] | None
    site: Site


@dataclass(frozen=True)
class Container:
    """The container of the ranks. The folders of the project, the results and the data keep their paths inside.

    Attributes:
        image: an image file, or, for pyxis, an image of a registry such as nvcr.io#nvidia/pytorch:25.09-py3.
        mounts: more folders, each `path` or `path outside:path inside`; data.dir is an inside path.
        python: the interpreter in the image.
    """

    name: Literal["none", "pyxis", "apptainer"]
    image: Folder | None
    mounts: list[Folder]
    python: str

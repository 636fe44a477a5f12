"""What a submission may cost: GPUs x time limit x jobs."""

from train_anywhere.slurm.script import units
from train_anywhere.slurm.script.job import Job


def gpu_hours(job: Job) -> float | None:
    """The most that all its jobs take until their time limits; None without one, or without GPUs."""
    if not job.gpus or not job.time:
        return None
    return gpus(job) * job.time / 3600 * jobs(job)


def gpus(job: Job) -> int:
    """GPUs that one job holds: of an exclusive one all that its nodes have, where that is known."""
    whole = job.node.gpus * job.nodes if job.node and job.cluster.exclusive is True else 0
    return max(whole, sum(job.devices))


def jobs(job: Job) -> int:
    """Members of an array, or links of a chain."""
    return job.cluster.chain if job.members is None else len(job.members)


def in_words(job: Job) -> str:
    """`up to 64 (8 GPUs x 2:00:00 x 4 jobs)`; empty without GPUs."""
    if not job.gpus:
        return ""
    hours = gpu_hours(job)
    if hours is None:
        return "no limit" if job.time == 0 else "not known: cluster.time is not set"
    again = ", and as much after each requeue" if job.cluster.requeue and not job.program else ""
    return f"up to {short(hours)} ({product(job)}){again}"


def product(job: Job) -> str:
    """`8 GPUs x 2:00:00 x 4 jobs`."""
    parts = [f"{gpus(job)} GPU{'s'[: gpus(job) > 1]}", units.clock(job.time or 0)]
    return " x ".join(parts + ([f"{jobs(job)} jobs"] if jobs(job) > 1 else []))


def short(hours: float) -> str:
    """At most one decimal, but never 0: `64`, `2.5`, `0.02`."""
    return f"{hours:.1f}".removesuffix(".0") if hours >= 1 else f"{hours:.2g}"

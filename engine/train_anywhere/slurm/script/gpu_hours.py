"""Compute the GPU hours of a submission: GPUs x time limit x jobs."""

from train_anywhere.slurm.script import units
from train_anywhere.slurm.script.job import Job


def gpu_hours(job: Job) -> float | None:
    """Return the GPU hours of all jobs until their time limits; None without a limit, or without GPUs."""
    if not job.gpus or not job.time:
        return None
    return count_gpus(job) * job.time / 3600 * count_jobs(job)


def count_gpus(job: Job) -> int:
    """Return the GPUs that one job occupies. An exclusive job occupies all GPUs of its nodes, if the preset knows them."""
    whole = job.node.gpus * job.nodes if job.node and job.cluster.exclusive is True else 0
    return max(whole, sum(job.devices))


def count_jobs(job: Job) -> int:
    """Return the number of members of an array, or of links of a chain."""
    return job.cluster.chain if job.members is None else len(job.members)


def describe(job: Job) -> str:
    """Return a phrase such as `up to 64 (8 GPUs x 2:00:00 x 4 jobs)`; empty without GPUs."""
    if not job.gpus:
        return ""
    hours = gpu_hours(job)
    if hours is None:
        return "no limit" if job.time == 0 else "not known: cluster.time is not set"
    again = ", and the same after each requeue" if job.cluster.requeue and not job.program else ""
    return f"up to {format_hours(hours)} ({format_product(job)}){again}"


def format_product(job: Job) -> str:
    """Return a phrase such as `8 GPUs x 2:00:00 x 4 jobs`."""
    parts = [f"{count_gpus(job)} GPU{'s'[: count_gpus(job) > 1]}", units.clock(job.time or 0)]
    return " x ".join(parts + ([f"{count_jobs(job)} jobs"] if count_jobs(job) > 1 else []))


def format_hours(hours: float) -> str:
    """Format hours with at most one decimal, but never as 0: `64`, `2.5`, `0.02`."""
    return f"{hours:.1f}".removesuffix(".0") if hours >= 1 else f"{hours:.2g}"

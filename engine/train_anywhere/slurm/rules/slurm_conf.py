"""Check a job against slurm.conf, read with `scontrol show config`. Only arrays and uneven jobs need the check."""

import re
from collections.abc import Iterator

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.script.job import Job


def problems(job: Job) -> list[str]:
    """Return a message for each limit that the job breaks; none if Slurm does not answer."""
    uneven = job.gpus and not job.even
    if job.cluster.scheduler != "slurm" or not (job.members or uneven):
        return []
    try:
        conf = programs.query(["scontrol", "show", "config"], unknown="(?!)")
    except SchedulerError:
        return []
    return [*_limit_problems(job, dict(re.findall(r"^(\w+) *= (.*?) *$", conf, re.MULTILINE)))]


def _limit_problems(job: Job, conf: dict[str, str]) -> Iterator[str]:
    limit, select = conf.get("MaxArraySize", ""), conf.get("SelectType", "")
    if job.members and limit.isdecimal() and max(job.members) >= int(limit):
        yield (
            f"the sweep has {len(job.members)} members, but an array of this cluster can have at most {limit} (MaxArraySize of `scontrol "
            f"show config`); submit it in parts, each with -m and at most {limit} members."
        )
    if job.gpus and not job.even and select == "select/linear":
        yield (
            f"this cluster has SelectType={select} (SelectTypeParameters={conf.get('SelectTypeParameters', '')}), which gives each node "
            f"of a job the same number of GPUs, and trainer.total_devices={sum(job.devices)} on {job.nodes} nodes is uneven; use "
            f"trainer.nodes={job.nodes} trainer.devices={max(job.devices)} trainer.total_devices=null."
        )

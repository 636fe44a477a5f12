"""The accounts of the user, from sacctmgr, for a site whose jobs need one."""

import dataclasses
import getpass
import os
import re
from functools import cache

from train_anywhere.config.cluster import Cluster
from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError

TIMEOUT_S = 10.0


def user_name() -> str:
    """Return the user's name, even if $USER is not set, or the id of a user without a name."""
    if name := os.environ.get("USER"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def fill_account(cluster: Cluster, gpus: bool) -> Cluster:
    """Return the cluster with the user's only account, if its jobs need one and none is set."""
    if cluster.scheduler != "slurm" or cluster.account or cluster.site.account is None:
        return cluster
    found = of_user(cluster, gpus)
    return dataclasses.replace(cluster, account=found[0]) if len(found) == 1 else cluster


def of_user(cluster: Cluster, gpus: bool) -> list[str]:
    """Return the user's accounts of the usual form, else all. Empty without sacctmgr.

    Of x_cpu and x_gpu, only the one counts that fits a job with (or without) GPUs.
    """
    names = _query(user_name(), os.environ.get("PATH", ""))
    usual = [name for name in names if has_form(name, cluster.site.account or ".*")] or names
    here, other = ("_gpu", "_cpu") if gpus else ("_cpu", "_gpu")
    return [n for n in usual if not (n.endswith(other) and n.removesuffix(other) + here in usual)]


def has_form(account: str, form: str) -> bool:
    """Return whether an account matches a pattern in any case: Slurm stores lower case."""
    return re.fullmatch(form, account, re.IGNORECASE) is not None


@cache
def _query(user: str, path: str) -> list[str]:
    """Return the accounts that sacctmgr lists for a user. `path` is a key of the cache only."""
    what = ["show", "associations", f"user={user}", "format=account"]
    try:
        answer = programs.run(["sacctmgr", "--noheader", "--parsable2", *what], TIMEOUT_S)
    except SchedulerError:
        return []
    names = {line.strip() for line in answer.out.splitlines() if line.strip()}
    return sorted(names) if answer.code == 0 else []

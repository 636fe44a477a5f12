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
    """Return the user's name, even if $USER is not set; the numeric id of a user without a name."""
    if name := os.environ.get("USER"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def fill_account(cluster: Cluster, gpus: bool) -> Cluster:
    """Return the cluster with the user's account, if its jobs need one, none is set, and the user has only one."""
    if cluster.scheduler != "slurm" or cluster.account or cluster.site.account is None:
        return cluster
    found = of_user(cluster, gpus)
    return dataclasses.replace(cluster, account=found[0]) if len(found) == 1 else cluster


def of_user(cluster: Cluster, gpus: bool) -> list[str]:
    """Return the user's accounts of the site's usual form, else all; empty if sacctmgr is not here or does not answer.

    Of x_cpu and x_gpu, only the one counts that fits a job with (or without) GPUs.
    """
    names = _query(user_name(), os.environ.get("PATH", ""))
    usual = [name for name in names if has_form(name, cluster.site.account or ".*")] or names
    here, other = ("_gpu", "_cpu") if gpus else ("_cpu", "_gpu")
    return [n for n in usual if not (n.endswith(other) and n.removesuffix(other) + here in usual)]


def has_form(account: str, form: str) -> bool:
    """Return whether an account matches a regular expression, in any case: Slurm stores account names in lower case."""
    return re.fullmatch(form, account, re.IGNORECASE) is not None


@cache
def _query(user: str, path: str) -> list[str]:
    """Return the accounts that sacctmgr lists for a user. `path` is a key of the cache only."""
    command = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        f"user={user}",
        "format=account",
    ]
    try:
        answer = programs.run(command, TIMEOUT_S)
    except SchedulerError:
        return []
    return (
        sorted({line.strip() for line in answer.out.splitlines() if line.strip()}) if answer.code == 0 else []
    )

"""What the testbed needs on this machine, checked before anything is written."""

import os
import shutil
from pathlib import Path

PROGRAMS = {
    "unshare": "util-linux",
    "ip": "iproute2",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
}
SBIN = ":/usr/sbin:/sbin"  # daemons live there, and it may be missing from a user's PATH
FOR_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
FOR_SSH = {"sshd": "openssh-server"}
FOR_PBS = {"qsub": "slurm-wlm-torque"}


def missing(*, accounting: bool = False, ssh: bool = False, pbs: bool = False) -> str | None:
    """One sentence about what this machine lacks and how to get it, or None when a testbed can start."""
    if not os.path.isdir("/proc/self/ns"):
        return "the testbed needs Linux with namespaces: use a Linux machine or container (privileged)"
    wanted = (
        PROGRAMS
        | (FOR_ACCOUNTING if accounting else {})
        | (FOR_SSH if ssh else {})
        | (FOR_PBS if pbs else {})
    )
    packages = _missing_packages(wanted)
    if packages:
        return f"the testbed needs programs that are not installed: apt-get install -y {' '.join(packages)}"
    if os.geteuid() != 0:
        return "the testbed needs root, for network and mount namespaces: run the same command with sudo"
    if not Path("/etc/slurm").is_dir():
        return "the testbed mounts its own /etc/slurm and there is none: mkdir /etc/slurm"
    return None


def _missing_packages(programs: dict[str, str]) -> list[str]:
    path = os.environ.get("PATH", "") + SBIN
    return sorted({package for program, package in programs.items() if not shutil.which(program, path=path)})

"""Check the programs that the testbed needs on this machine, before anything is written."""

import os
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


def find(program: str, path: str, root: str = "") -> str | None:
    """Return the place of a program on `path`, or None; `root` is the folder that has the /usr of the machines."""
    places = (f"{folder}/{program}" for folder in path.split(":"))
    return next((place for place in places if os.path.lexists(root + place)), None)


def describe_missing(
    *, accounting: bool = False, ssh: bool = False, pbs: bool = False, root: str = ""
) -> str | None:
    """Return a message about what this machine lacks and how to get it, or None if a testbed can start."""
    if not os.path.isdir("/proc/self/ns"):
        return "the testbed needs Linux with namespaces: use a Linux machine or container (privileged)"
    programs = PROGRAMS | (FOR_ACCOUNTING if accounting else {})
    programs |= (FOR_SSH if ssh else {}) | (FOR_PBS if pbs else {})
    if root and not Path(root, "etc").is_dir():
        return f"there is no other Debian in {root}: bash engine/tests/slurm/make_root.sh {root} makes one, with a newer Slurm"
    packages = _missing_packages(programs, root)
    if packages:
        install = f"{f'chroot {root} ' if root else ''}apt-get install -y {' '.join(packages)}"
        return f"the testbed needs programs that are not installed: {install}"
    if os.geteuid() != 0:
        return "the testbed needs root, for network and mount namespaces: run the same command with sudo"
    if not root and not Path("/etc/slurm").is_dir():
        return "the testbed mounts its own /etc/slurm, and this folder does not exist: mkdir /etc/slurm"
    return None


def _missing_packages(programs: dict[str, str], root: str) -> list[str]:
    path = os.environ.get("PATH", "") + SBIN
    return sorted({package for program, package in programs.items() if not find(program, path, root)})

"""Check this machine for a testbed, and write the files that its daemons read."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tools.testbed.namespaces import TestbedError
from tools.testbed.sites import RULES, Site
from train_anywhere.slurm.rules.local_rules import SHARED_BY_TESTBED

PROGRAMS = {
    "unshare": "util-linux",
    "ip": "iproute2",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
}

SBIN = ":/usr/sbin:/sbin"  # daemons live there, and it may be missing from a user's PATH


def find(program: str, path: str, root: str = "") -> str | None:
    """Return the place of a program on `path`, or None. `root` has the /usr of the machines."""
    places = (f"{folder}/{program}" for folder in path.split(":"))
    return next((place for place in places if os.path.lexists(root + place)), None)


def describe_missing(
    *, accounting: bool = False, ssh: bool = False, pbs: bool = False, root: str = ""
) -> str | None:
    """Return what this machine lacks and how to get it. None if a testbed can start."""
    if not os.path.isdir("/proc/self/ns"):
        return "the testbed needs Linux with namespaces: use a Linux machine or container (privileged)"
    programs = PROGRAMS | ({"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"} if accounting else {})
    programs |= ({"sshd": "openssh-server"} if ssh else {}) | ({"qsub": "slurm-wlm-torque"} if pbs else {})
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


SOURCE = Path(__file__).parent / "pyxis_standin.c"

HEADER = Path("/usr/include/slurm/spank.h")

PACKAGES = "gcc libc6-dev libslurm-dev"


def can_build() -> bool:
    """Return whether this machine can compile the stand-in."""
    return shutil.which("gcc") is not None and HEADER.exists()


def make_image(
    folder: Path, borrow: Sequence[Path] = (), environment: Mapping[str, str] | None = None
) -> Path:
    """Make an image folder that mounts this machine's programs.

    Args:
        folder: created by this call; every node must see it.
        borrow: folders of this machine to mount at the same path, besides `/usr`, such as a Python.
        environment: variables that the image sets, such as `PATH`.

    Returns:
        `folder`, for `--container-image`.
    """
    (folder / "etc").mkdir(parents=True)
    borrowed = [Path("/usr"), Path("/etc/alternatives"), *borrow]
    # on current distributions these are links into /usr
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        original = Path("/") / name
        if original.is_symlink():
            (folder / name).symlink_to(original.readlink())
        elif original.exists():
            borrowed.append(original)
    lines = [f"{path} {path} none bind\n" for path in borrowed if path.exists()]
    (folder / "etc/fstab").write_text("".join(lines))
    variables = [f"{name}={value}\n" for name, value in (environment or {}).items()]
    (folder / "etc/environment").write_text("".join(variables))
    return folder


FILES = Path(__file__).parent / "files"
NETWORK = "10.77.0"  # in the login node's network namespace, so several testbeds don't collide
GATEWAY = f"{NETWORK}.254"
USERS = {"alice": 2001, "bob": 2002}
SLURM_COMMANDS = ("sbatch", "srun", "salloc", "sattach", "sbcast", "squeue", "scancel", "scontrol", "sinfo")
SLURM_REPORTS = ("sacct", "sacctmgr", "sstat", "sprio")
PBS_COMMANDS = ("qsub", "qstat", "qdel", "qalter", "qhold", "qrls", "pbsnodes")
COMMANDS = (*SLURM_COMMANDS, *SLURM_REPORTS, *PBS_COMMANDS, "mpirun")
FOLDERS = ("bin", "dev", "etc/slurm", "etc/ssh", "home", "log", "run", "state")


@dataclass(frozen=True)
class Layout:
    """The layout of one testbed, on which its files and scripts depend.

    Attributes:
        share: folders that all nodes see even if they are below `/tmp`.
        root: folder whose `/usr` and `/etc` the machines use; empty for this machine's.
    """

    dir: Path
    site: Site
    nodes: tuple[str, ...]
    accounting: bool
    ssh: bool
    share: tuple[Path, ...]
    conf: str = ""
    root: str = ""

    def address(self, node: str) -> str:
        """Return the IP address of a node."""
        return f"{NETWORK}.{self.nodes.index(node) + 1}"


def write_all(layout: Layout) -> None:
    """Create the folders and write all files of a new testbed."""
    for name in FOLDERS:
        (layout.dir / name).mkdir(parents=True, exist_ok=True)
    for index in range(layout.site.gpus):
        (layout.dir / f"dev/nvidia{index}").symlink_to("/dev/null")
    _write_private(layout.dir / "etc/munge.key", os.urandom(128))
    hosts = ["127.0.0.1 localhost", f"{GATEWAY} login"]
    hosts += [f"{layout.address(node)} {node}" for node in layout.nodes]
    (layout.dir / "etc/hosts").write_text("\n".join(hosts) + "\n")
    shutil.copy(FILES / "nsswitch.conf", layout.dir / "etc/nsswitch.conf")
    _write_users(layout.dir)
    _write_slurm(layout)
    _write_shims(layout)
    if layout.ssh:
        _write_ssh(layout.dir)


def _fill(source: str, target: Path, **values: object) -> None:
    target.write_text(Template((FILES / source).read_text()).substitute(values))


def _write_private(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def _write_users(folder: Path) -> None:
    """Write the users: those of this machine, and the testbed's own."""
    passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
    for name, uid in USERS.items():
        home = folder / "home" / name
        home.mkdir()
        os.chown(home, uid, uid)
        passwd += f"{name}:x:{uid}:{uid}::{home}:/bin/bash\n"
        group += f"{name}:x:{uid}:\n"
    (folder / "etc/passwd").write_text(passwd)
    (folder / "etc/group").write_text(group)


def _write_slurm(layout: Layout) -> None:
    site, etc = layout.site, layout.dir / "etc/slurm"
    nodes = ",".join(layout.nodes)
    partitions = [f"PartitionName={name} PriorityTier=10 PreemptMode=OFF" for name in site.partitions]
    partitions[0] += " Default=YES"
    accounting = (FILES / ("accounting.conf" if layout.accounting else "no_accounting.conf")).read_text()
    _fill(
        "slurm.conf",
        etc / "slurm.conf",
        dir=layout.dir,
        accounting=accounting,
        nodes=nodes,
        cpus=site.cpus,
        memory_mb=site.memory_mb,
        gres=site.gres,
        features=f"Features={','.join(site.features)}" if site.features else "",
        max_time=site.max_time,
        job_submit="JobSubmitPlugins=lua" if site.rules else "",
        partitions="\n".join(partitions),
    )
    _edit(etc / "slurm.conf", layout.conf)
    if "proctrack/cgroup" in layout.conf:
        shutil.copy(FILES / "cgroup.conf", etc)
    (layout.dir / SHARED_BY_TESTBED).write_text("".join(f"{folder}\n" for folder in layout.share))
    gpu_type = f"Type={site.gpu_type}" if site.gpu_type else ""
    _fill("gres.conf", etc / "gres.conf", dir=layout.dir, type=gpu_type, last_gpu=site.gpus - 1)
    _fill(
        "job_submit.lua", etc / "job_submit.lua", **{rule: str(rule in site.rules).lower() for rule in RULES}
    )
    shutil.copy(FILES / "mpi.conf", etc)
    shutil.copy(FILES / "task_prolog.sh", etc)
    (etc / "task_prolog.sh").chmod(0o755)
    _write_plugins(layout)
    if layout.accounting:
        _fill("slurmdbd.conf", etc / "slurmdbd.conf", dir=layout.dir)
        (etc / "slurmdbd.conf").chmod(0o600)


def _setting(line: str) -> str:
    """Return what a line of slurm.conf sets: its first key, or the partition that it describes."""
    found = re.match(r"PartitionName=\S+|\w+=", line, re.I)
    return found[0].lower() if found else ""


def _edit(conf: Path, lines: str) -> None:
    """Append `lines` to slurm.conf in place of lines with the same keys."""
    new = {_setting(line) for line in lines.splitlines()}
    lines_to_keep = [line for line in conf.read_text().splitlines() if _setting(line) not in new]
    conf.write_text("\n".join([*lines_to_keep, lines]) + "\n")


def _write_plugins(layout: Layout) -> None:
    """Configure the plugins for PBS variables and for containers."""
    plugins, etc = "", layout.dir / "etc/slurm"
    if layout.site.pbs:
        (etc / "pbs").touch()
        plugins += "required spank_pbs.so\n"
    if can_build() and not layout.root:  # a plugin fits only the Slurm that it is compiled with
        words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(etc / "pyxis_standin.so"), str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise TestbedError(f"the container stand-in does not compile:\n{done.stderr}")
        plugins += "required /etc/slurm/pyxis_standin.so\n"
    (etc / "plugstack.conf").write_text(plugins)


def _write_shims(layout: Layout) -> None:
    """Write a script for each client command that is installed."""
    folder = layout.dir
    for command in COMMANDS:
        program = find(command, "/usr/bin:/usr/local/bin", layout.root)
        if program:
            _fill("shim.sh", folder / "bin" / command, command=command, program=program, dir=folder)
            (folder / "bin" / command).chmod(0o755)


def _write_ssh(folder: Path) -> None:
    """Write keys and settings for `ssh NODE` without a password."""
    ssh = folder / "etc/ssh"
    for name in ("host_key", "id_root"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / name], check=True)
    shutil.copy(ssh / "id_root.pub", ssh / "authorized_keys")
    for user, uid in USERS.items():
        _write_private(ssh / f"id_{user}", (ssh / "id_root").read_bytes())
        os.chown(ssh / f"id_{user}", uid, uid)
    for name in ("sshd_config", "ssh_config"):
        _fill(name, ssh / name, dir=folder)

"""Control the testbed: start and stop it, run commands, power a node off and on."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.testbed import namespaces, testbed_config
from tools.testbed.namespaces import TestbedError
from tools.testbed.sites import find_site
from tools.testbed.testbed_config import describe_missing
from train_anywhere.errors import listed
from train_anywhere.slurm.scheduler.queue import ENDED

START_TIMEOUT_S = 60


class Machines:
    """The machines of one testbed, each identified by its process 1."""

    def __init__(self, layout: testbed_config.Layout) -> None:
        self.layout = layout
        self._started: list[subprocess.Popen[bytes]] = []

    def pid(self, name: str) -> int | None:
        """Return the id of a machine's process 1 in this machine's numbering, or None if it is off."""
        file = self.layout.dir / f"run/{name}.pid"
        words = file.read_text().split() if file.exists() else []
        if len(words) != 2:  # another process is writing it
            return None
        pid, started = words
        return int(pid) if namespaces.start_time(int(pid)) == started else None

    def start_login(self, outlive: bool) -> None:
        """Start the login node and wait for its daemons.

        Commands run there keep this machine's process ids and /proc, so each is one process that gets signals directly.
        """
        login = str(testbed_config.FILES / "login.sh")
        script = ["bash", login, str(self.layout.dir), testbed_config.GATEWAY]
        script += [str(int(self.layout.ssh)), str(int(self.layout.accounting))]
        if self.layout.root:
            own_python = [os.path.realpath(sys.executable), sysconfig.get_path("stdlib")]
            script += [self.layout.root, *own_python]
        with_us = [] if outlive else ["setpriv", "--pdeathsig", "KILL"]
        outer = self._start("login", [*with_us, *namespaces.UNSHARE, *script])
        self._save_pid("login", namespaces.child_of(outer))
        self.wait_for((self.layout.dir / "run/ready").exists, "the login node did not start")

    def boot(self, node: str) -> None:
        """Start a compute node with an empty `/tmp` and plug it into the login node's bridge."""
        login = self._login()
        enter = namespaces.enter(login, pid_namespace=True, cwd="/")
        shared = [str(p) for p in self.layout.share if p.is_relative_to("/tmp")]
        words = [
            self.layout.dir,
            node,
            self.layout.address(node),
            testbed_config.GATEWAY,
            int(self.layout.ssh),
        ]
        script = ["bash", str(testbed_config.FILES / "node.sh"), *map(str, words), *shared]
        outer = self._start(node, [*enter, *namespaces.UNSHARE, "--mount-proc", *script])
        # nsenter -> unshare -> bash, which is process 1 of the node
        pid = namespaces.child_of(namespaces.child_of(outer))
        self._save_pid(node, pid)
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{login}/ns/net"):
            time.sleep(0.003)
        cable = f"ip link delete {node} 2> /dev/null; ip link add {node} type veth peer name eth0 netns {pid}"
        script = ["sh", "-c", f"{cable} && ip link set {node} master br0 up"]
        subprocess.run([*namespaces.enter(login, pid_namespace=False, cwd="/"), *script], check=True)

    def kill(self, name: str) -> None:
        """Kill all processes of a machine at once. With the login node, the compute nodes die too."""
        if name != "login":
            # disconnected first, because the kernel would close its connections and so notify the other machines
            enter = namespaces.enter(self._login(), pid_namespace=False, cwd="/")
            # fails if the node is already off
            subprocess.run([*enter, "ip", "link", "delete", name], check=False, capture_output=True)
        if pid := self.pid(name):
            namespaces.kill(pid)
        for process in self._started if name == "login" else ():  # so that no zombies stay
            process.wait()

    def wait_for(self, done: Callable[[], bool], sentence: str) -> None:
        """Wait until `done()` is true, and fail at once if the login node has died.

        Raises TestbedError: `sentence`, with the end of the log.
        """
        end = time.monotonic() + START_TIMEOUT_S
        while not done():
            if not self.pid("login") or time.monotonic() > end:
                logs = [self.layout.dir / f"log/{name}" for name in ("login.out", "slurmctld.log")]
                ends = [line for log in logs if log.exists() for line in log.read_text().splitlines()[-8:]]
                shown = "\n".join(ends)
                raise TestbedError(f"{sentence}; logs are in {self.layout.dir}/log:\n{shown}")
            time.sleep(0.02)

    def _login(self) -> int:
        pid = self.pid("login")
        if not pid:
            raise TestbedError("the testbed is down: start it with `python slurm/testbed.py up`")
        return pid

    def _start(self, name: str, argv: list[str]) -> int:
        process = namespaces.start(argv, self.layout.dir / f"log/{name}.out")
        self._started.append(process)
        return process.pid

    def _save_pid(self, name: str, pid: int) -> None:
        (self.layout.dir / f"run/{name}.pid").write_text(f"{pid} {namespaces.start_time(pid)}\n")


REPOSITORY = Path(os.environ.get("TEMPLATE_PROJECT") or Path(__file__).parents[2])
MARKER = "testbed.json"  # marks a testbed's folder, which `up` may empty


def default_dir() -> Path:
    """Return the default folder of the testbed."""
    return Path(f"/var/tmp/slurm-testbed-{os.getuid()}")


class Testbed:
    """A real Slurm cluster on this machine. `with Testbed(...)` stops it at the end.

    Args:
        dir: the testbed's folder; `up` creates it, and the next `up` empties it.
        site: the kind of nodes, a name of `tools.testbed.sites.SITES`.
        accounting: also run slurmdbd with a database, for full `sacct`.
        ssh: also run sshd on every node, for `mpirun` and `horovodrun` with a host list.
        share: folders below `/tmp` that all nodes see, although each node has its own `/tmp`. All nodes also see the
            testbed's folder and this repository.
        conf: lines for slurm.conf, which replace lines with the same keys, such as `SelectType=select/linear`.
        root: a folder whose `/usr` and `/etc` replace this machine's, such as a newer Debian
            (engine/tests/slurm/make_root.sh makes one); `/usr/local` and this process' Python stay.
        outlive: keep running after this process has ended; otherwise the kernel kills the testbed with it.
    """

    __test__ = False  # the name starts like a test class; pytest should not look into it

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,
        nodes: int = 4,
        site: str = "slurm",
        accounting: bool = False,
        ssh: bool = False,
        share: Sequence[str | os.PathLike[str]] = (),
        outlive: bool = False,
        conf: str = "",
        root: str | os.PathLike[str] = "",
    ) -> None:
        self.dir = Path(dir or default_dir()).resolve()
        self.site = site
        self.outlive = outlive
        programs = str(root and Path(root).resolve())
        self._words = {"nodes": nodes, "site": site, "accounting": accounting, "ssh": ssh, "conf": conf}
        self._words |= {"share": [str(p) for p in share], "root": programs}
        spec = find_site(site)
        names = tuple(spec.node_name % number for number in range(1, nodes + 1))
        shared = tuple(Path(p).resolve() for p in (self.dir, REPOSITORY, *share))
        self.layout = testbed_config.Layout(self.dir, spec, names, accounting, ssh, shared, conf, programs)
        self.machines = Machines(self.layout)

    @classmethod
    def attach(cls, dir: str | os.PathLike[str] | None = None) -> "Testbed":
        """Return the testbed that another process started in `dir`.

        Raises TestbedError: the folder has no testbed.
        """
        folder = Path(dir or default_dir()).resolve()
        if not (folder / MARKER).exists():
            raise TestbedError(
                f"there is no testbed in {folder}: start one with `python slurm/testbed.py up`"
            )
        return cls(folder, outlive=True, **json.loads((folder / MARKER).read_text()))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The host names of the compute nodes."""
        return self.layout.nodes

    def up(self) -> "Testbed":
        """Start everything and return when all nodes are idle, after one to five seconds.

        Raises TestbedError: this machine lacks something, the folder is in use, or a daemon did not start.
        """
        of = self.layout
        problem = describe_missing(accounting=of.accounting, ssh=of.ssh, pbs=of.site.pbs, root=of.root)
        if problem:
            raise TestbedError(problem)
        self._take_folder()
        testbed_config.write_all(self.layout)
        try:
            self.machines.start_login(self.outlive)
            for node in self.nodes:
                self.boot_node(node)
            self.machines.wait_for(self._all_idle, "not all nodes became idle")
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Kill every process of the testbed. Logs and job output stay in its folder."""
        self.machines.kill("login")

    def is_up(self) -> bool:
        """Return whether the login node runs."""
        return self.machines.pid("login") is not None

    def __enter__(self) -> "Testbed":
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    def env(self) -> dict[str, str]:
        """Return this process' environment with the testbed's commands first on PATH."""
        inside = self.env_inside()
        return inside | {"PATH": f"{self.dir / 'bin'}:{inside['PATH']}"}

    def env_inside(self) -> dict[str, str]:
        """Return this process' environment for the login node, with the real commands."""
        of_job = ("SLURM", "SBATCH", "SRUN", "PBS_")  # the testbed may be used inside a job of a real cluster
        clean = {name: value for name, value in os.environ.items() if not name.startswith(of_job)}
        path = [folder for folder in os.get_exec_path() if folder != str(self.dir / "bin")]
        return clean | {
            "PATH": ":".join(path),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def command(
        self,
        argv: Sequence[str],
        user: str | None = None,
        node: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """Return the command that runs `argv` as root or `user`, on the login node or on `node`.

        Raises TestbedError: the testbed or that node is down.
        """
        pid = self.machines.pid(node or "login")
        if not pid:
            down = f"no testbed is up in {self.dir}: python slurm/testbed.py up"
            raise TestbedError(f"{node} is off: boot it" if node else down)
        words = namespaces.enter(pid, pid_namespace=node is not None, cwd=cwd or Path.cwd())
        if user:
            who = [f"HOME={self.dir}/home/{user}", f"USER={user}", f"LOGNAME={user}"]
            words += ["runuser", "-u", user, "--", "env", *who]
        return [*words, *argv]

    def run(
        self,
        argv: Sequence[str],
        user: str | None = None,
        node: str | None = None,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the testbed and return its output. `env` is added to the environment.

        Raises subprocess.TimeoutExpired: it ran longer than `timeout` seconds and was killed. Raises TestbedError: the testbed or
        that node is down.
        """
        words = self.command(argv, user, node, cwd)
        return namespaces.capture(words, self.env_inside() | dict(env or {}), timeout)

    def job_states(self, job_id: int | str) -> list[str]:
        """Return Slurm's state of a job, or of every member of an array."""
        shown = self.run(["scontrol", "show", "job", "--oneliner", str(job_id)]).stdout
        return re.findall(r"\bJobState=(\w+)", shown)

    def wait_job(self, job_id: int | str, timeout: float = 60) -> str:
        """Wait until a job has ended and return its state, or the first bad one of an array.

        Raises TestbedError: it has not ended after `timeout` seconds, or is unknown.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            states = self.job_states(job_id)
            if states and ENDED.issuperset(states):
                return next((state for state in states if state != "COMPLETED"), "COMPLETED")
            time.sleep(0.25)  # a look takes 10 ms of a CPU
        about = self.run(["scontrol", "show", "job", str(job_id)])
        raise TestbedError(f"job {job_id} has not ended after {timeout} s:\n{about.stdout}{about.stderr}")

    def kill_node(self, node: str) -> None:
        """Power a node off: all its processes die at once, without notice to the other machines."""
        self._check_node(node)
        self.machines.kill(node)

    def boot_node(self, node: str) -> None:
        """Power a node on, with an empty `/tmp`.

        Raises TestbedError: the node does not exist, or is already on.
        """
        self._check_node(node)
        if self.machines.pid(node):
            raise TestbedError(f"{node} is already on: power it off first")
        self.machines.boot(node)

    def _check_node(self, node: str) -> None:
        if node not in self.nodes:
            raise TestbedError(f"there is no node {node!r}: use one of {listed(self.nodes)}")

    def _take_folder(self) -> None:
        if self.is_up():
            raise TestbedError(
                f"a testbed is already up in {self.dir}: use it, take it down, or give another --dir"
            )
        if self.dir.exists():
            if any(self.dir.iterdir()) and not (self.dir / MARKER).exists():
                raise TestbedError(f"{self.dir} is not empty and not a testbed's: give --dir a new folder")
            shutil.rmtree(self.dir)
        self.dir.mkdir(parents=True)
        self.dir.chmod(0o755)
        (self.dir / MARKER).write_text(json.dumps(self._words) + "\n")

    def _all_idle(self) -> bool:
        listed = set(self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"]).stdout.splitlines())
        return len(listed) == len(self.nodes) and all(line.endswith(" idle") for line in listed)

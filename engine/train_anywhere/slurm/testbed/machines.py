"""Start and stop the login node and the compute nodes, which are sets of namespaces."""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable

from train_anywhere.slurm.testbed import namespaces, testbed_config
from train_anywhere.slurm.testbed.testbed_errors import TestbedError

START_TIMEOUT_S = 60


class Machines:
    """The machines of one testbed, each identified by its process 1 (id and start time in `run/<name>.pid`)."""

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
        outer = self._start(node, [*enter, *namespaces.UNSHARE, "--mount-proc", *self._node_script(node)])
        # nsenter -> unshare -> bash, which is process 1 of the node
        pid = namespaces.child_of(namespaces.child_of(outer))
        self._save_pid(node, pid)
        namespaces.wait_for_own_network(pid, login)
        cable = f"ip link delete {node} 2> /dev/null; ip link add {node} type veth peer name eth0 netns {pid}"
        script = ["sh", "-c", f"{cable} && ip link set {node} master br0 up"]
        subprocess.run([*namespaces.enter(login, pid_namespace=False, cwd="/"), *script], check=True)

    def unplug(self, node: str) -> None:
        """Disconnect a node from the bridge."""
        enter = namespaces.enter(self._login(), pid_namespace=False, cwd="/")
        # fails if the node is already off
        subprocess.run([*enter, "ip", "link", "delete", node], check=False, capture_output=True)

    def kill(self, name: str) -> None:
        """Kill all processes of a machine at once. With the login node, the compute nodes die too."""
        pid = self.pid(name)
        if pid:
            namespaces.kill(pid)

    def reap(self) -> None:
        """Wait for the processes that this object started, so that no zombies stay."""
        for process in self._started:
            process.wait()
        self._started.clear()

    def wait_for(self, done: Callable[[], bool], sentence: str) -> None:
        """Wait until `done()` is true; fail at once if the login node has died.

        Raises:
            TestbedError: `sentence`, with the end of the log.
        """
        end = time.monotonic() + START_TIMEOUT_S
        while not done():
            if not self.pid("login") or time.monotonic() > end:
                raise TestbedError(f"{sentence}; logs are in {self.layout.dir}/log:\n{self._log_tail()}")
            time.sleep(0.02)

    def _login(self) -> int:
        pid = self.pid("login")
        if not pid:
            raise TestbedError("the testbed is down: start it with `python slurm/testbed.py up`")
        return pid

    def _node_script(self, node: str) -> list[str]:
        layout = self.layout
        shared = [str(p) for p in layout.share if p.is_relative_to("/tmp")]
        words = [layout.dir, node, layout.address(node), testbed_config.GATEWAY, int(layout.ssh), *shared]
        return ["bash", str(testbed_config.FILES / "node.sh"), *map(str, words)]

    def _start(self, name: str, argv: list[str]) -> int:
        process = namespaces.start(argv, self.layout.dir / f"log/{name}.out")
        self._started.append(process)
        return process.pid

    def _save_pid(self, name: str, pid: int) -> None:
        (self.layout.dir / f"run/{name}.pid").write_text(f"{pid} {namespaces.start_time(pid)}\n")

    def _log_tail(self) -> str:
        logs = [self.layout.dir / f"log/{name}" for name in ("login.out", "slurmctld.log")]
        return "\n".join(line for log in logs if log.exists() for line in log.read_text().splitlines()[-8:])

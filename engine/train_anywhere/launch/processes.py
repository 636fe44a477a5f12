"""The ranks of a run on this machine: this process is the only rank, or it starts one process per device and watches them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from train_anywhere.checkpoints.recovery import recover_leftovers
from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.layout import Layout, local_layout
from train_anywhere.errors import INTERRUPTED, NOT_FINITE, REFUSED, STOPPED, ConfigError, ProjectError
from train_anywhere.features import Features
from train_anywhere.files import ROOT, with_engine
from train_anywhere.files.terminal.output import outlive_terminal, protect_output
from train_anywhere.launch.exits import follow_parent, rank_environment
from train_anywhere.launch.forkserver import ForkServer, Process
from train_anywhere.launch.rank import load_frozen, run_rank
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.training.stop import SIGNALS

MONITOR_EXIT_S = 0.2
"""How long a run that has ended waits for its monitor process, which may take longer because its priority is low."""

KILLED = 128 + signal.SIGKILL
"""Exit code of killed ranks, among others those that hung: see features/hangs/kill_ranks.py."""

Start = Callable[..., Process]
"""A function that starts a program: `subprocess.Popen`, or `ForkServer.start`."""


class ForkServers:
    """A fork server for each framework, started on first use."""

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}

    def get_starter(self, framework: str, ranks: int) -> Start:
        """Return the function that starts the ranks of a run and its monitor process.

        A later run with another number of ranks may start new interpreters, since that number sets the number of threads.
        """
        if framework not in self._servers:
            modules = (
                f"train_anywhere.training.{framework}.run",
                "train_anywhere.launch.rank",
                *MONITOR_MODULES,
                *LATE_IMPORTS[framework],
            )
            self._servers[framework] = ForkServer(modules, {**os.environ, **_thread_variables(ranks)})
        return self._servers[framework].start


LATE_IMPORTS = {
    "lightning": ("train_anywhere.training.lightning.loop.tensorboard", "torch.utils.tensorboard", "hydra"),
    "keras": ("hydra",),
}
"""Modules that a run imports inside functions; hydra includes omegaconf, which Lightning imports too."""

MONITOR_MODULES = ("train_anywhere.monitor.node", "train_anywhere.monitor.report.page")
"""Modules of the monitor process and the report, imported besides the framework."""


def run_here(
    run: RunDir, layout: Layout, start: Start | None = None, signals: list[int] | None = None
) -> int:
    """Train in `run` on this machine; return the exit code of training.

    `start` starts all ranks; None: a single rank runs in this process. The signals that were forwarded to ranks are added to `signals`.
    """
    inside = layout.world_size == 1 and start is None
    return run_rank(run) if inside else _run_ranks(run, layout.world_size, start, signals)


def _run_ranks(run: RunDir, ranks: int, start: Start | None, signals: list[int] | None) -> int:
    protect_output()
    outlive_terminal()
    code = watch_ranks(start_ranks(run, ranks, start or subprocess.Popen), signals=signals)
    code = check_recorded(run, code)
    info = run.read_info()
    if code in (0, KILLED) and info.get("state") == "preempted":
        ended_by = (info.get(ATTEMPTS) or [{}])[-1].get("ended_by")
        code = INTERRUPTED if ended_by == "SIGINT" else STOPPED
    if code not in (0, REFUSED):
        recover_leftovers(run)
    return code


def check_recorded(run: RunDir, code: int) -> int:
    """Return the exit code of the ranks, or 1 if all exited with 0 before rank 0 recorded the end of the run."""
    if run.read_info().get("state") != "running":
        return code
    with contextlib.suppress(ProjectError):  # an unreadable run folder is not why the ranks failed
        if load_frozen(run).program:
            run.update(state="failed" if code else "completed")
            return code
    if code:
        return code
    print(f"the process of {run.path} exited with code 0 before the end of the run.", file=sys.stderr)
    return 1


@contextlib.contextmanager
def run_monitor(run: RunDir, config: Config, start: Start = subprocess.Popen) -> Iterator[None]:
    """Run the monitor process of this machine (monitor/node.py) inside the `with` block, if a feature needs it and it can be started."""
    features = Features.of(config)
    if not features.on_node:
        yield
        return
    command = [sys.executable, "-m", "train_anywhere.monitor.node", str(run.path), str(os.getpid())]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = start(
            command, env=with_engine(), cwd=ROOT, stdin=pipe, stderr=quiet, start_new_session=True
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        _stop_monitor(process)
        for feature in features.all:
            feature.after_ranks_here(run)


def _stop_monitor(process: Process) -> None:
    """Terminate the monitor, and kill it if it is slow: it has no unwritten data."""
    process.terminate()
    try:
        process.wait(MONITOR_EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin:
        process.stdin.close()


def refuse_nested_launch() -> None:
    """Refuse `mpirun python src/train.py`, where each process would make its own run.

    Raises:
        ConfigError: this process already is one rank of several.
    """
    topology = discover()
    if topology.world_size > 1:
        raise ConfigError(
            f"this process was started as rank {topology.rank} of {topology.world_size} by {topology.launched_by}, but the "
            f"project starts its ranks itself: run the command once, with launch={'|'.join(LAUNCHERS)} inside "
            "a job, or trainer.devices=N on one machine."
        )


def start_ranks(run: RunDir, ranks: int, start: Start = subprocess.Popen) -> list[Process]:
    """Start `ranks` processes of this program, with the environment variables that `discover` reads."""
    command = build_rank_command(run, 1)
    return [start(command, env=environ, start_new_session=True) for environ in _environments(ranks)]


def build_rank_command(run: RunDir, ranks: int) -> list[str]:
    """Return the command that trains in a run folder: a single rank, or the launcher of several."""
    one, several = [str(ROOT / "src" / "train.py"), "--run"], ["-m", "train_anywhere.launch.processes"]
    return [sys.executable, "-u", *(several if ranks > 1 else one), str(run.path)]


def _environments(ranks: int) -> list[dict[str, str]]:
    """Return the environment of each rank; a single one needs no variables."""
    if ranks == 1:
        return [rank_environment()]
    # variables of an outer torchrun, whose store the ranks would wait for
    left = ("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE")
    shared = {
        **{k: v for k, v in rank_environment().items() if not k.startswith(left)},
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port(ranks)),
        **_thread_variables(ranks),
    }
    return [{**shared, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]


def _thread_variables(ranks: int) -> dict[str, str]:
    """Share the CPUs of this machine among several ranks, unless the user has set the number of threads."""
    if ranks == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}


def watch_ranks(processes: Sequence[Process], grace: float = 15.0, signals: list[int] | None = None) -> int:
    """Wait for all ranks, rank 0 first in `processes`; forward signals; if a rank fails, report it and stop the others.

    The other ranks are killed `grace` seconds after the first failure. The forwarded signals are added to `signals`.

    Returns:
        0, or the exit code of the first rank that failed, as of a shell: 128 + n for signal n.
    """

    def forward(number: int, frame: object) -> None:
        if signals is not None:
            signals.append(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    for number in SIGNALS:  # not SIGHUP: a run continues when its terminal is closed
        signal.signal(number, forward)
    while True:
        codes = [p.poll() for p in processes]
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed:
            rank, code = failed[0]
            return _stop_others(processes, rank, code, grace)
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _stop_others(processes: Sequence[Process], rank: int, code: int, grace: float) -> int:
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(p.poll() is None for p in processes):
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    status = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    several = len(processes) > 1
    if code not in (STOPPED, INTERRUPTED, NOT_FINITE) and (several or code < 0):
        who = f"rank {rank} of {len(processes)}" if several else "the training process"
        rest = "; the other ranks were stopped." if several else "."
        print(f"{who} ended with {status}{rest}", file=sys.stderr)
    return 128 - code if code < 0 else code


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive unused TCP ports of the loopback interface.

    The workers of some strategies listen on one port each: the coordinator's port plus their local rank.
    """
    while True:
        with contextlib.ExitStack() as stack:
            first = _bind(stack, 0)
            try:
                for port in range(first + 1, first + count):
                    _bind(stack, port)
            except (OSError, OverflowError):
                continue
            return first


def _bind(stack: contextlib.ExitStack, port: int) -> int:
    s = stack.enter_context(socket.socket())
    s.bind(("127.0.0.1", port))
    return int(s.getsockname()[1])


if __name__ == "__main__":
    follow_parent()
    here = RunDir(Path(sys.argv[1]))
    sys.exit(run_here(here, local_layout(load_frozen(here))))

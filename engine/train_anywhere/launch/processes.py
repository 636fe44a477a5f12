"""The ranks of a run on this machine: this process, or one process per device."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import find_launcher
from train_anywhere.distributed.layout import SHARE, Layout, local_layout, usable_cpus
from train_anywhere.distributed.network.addresses import free_port, node_name
from train_anywhere.errors import INTERRUPTED, NOT_FINITE, STOPPED, ConfigError
from train_anywhere.features import Features
from train_anywhere.files import ROOT, with_engine
from train_anywhere.files.atomic import open_file
from train_anywhere.files.terminal.output import outlive_terminal, protect_output
from train_anywhere.job.rank_process import SIGNALS
from train_anywhere.job.signals import Signals
from train_anywhere.job.supervisor import POLL_S, RankPlace, Supervisor
from train_anywhere.launch.exits import follow_parent, rank_environment
from train_anywhere.launch.forkserver import ForkedProcess, ForkServer, Process
from train_anywhere.launch.launcher import to_shell_code
from train_anywhere.launch.rank import run_rank
from train_anywhere.runs.attempts import STARTED, describe_exit_code, next_start
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.reopen.frozen import load_frozen

MONITOR_EXIT_S = 0.2
"""How long a run that has ended waits for its monitor process, which may take longer because its priority is low."""

AGAIN_GRACE_S = 1.0
"""How long ranks that may start again get to end after one has failed, unless a checkpoint is being written."""

Start = Callable[..., Process]
"""A function that starts a program."""

LATE_IMPORTS = {
    "lightning": ("train_anywhere.training.lightning.loop.tensorboard", "torch.utils.tensorboard", "hydra"),
    "keras": ("hydra",),
}
"""Modules that a run imports inside functions; hydra includes omegaconf, which Lightning imports too."""


def fork_server(framework: str, ranks: int, address: str = "") -> ForkServer:
    """Return a server that has imported what ranks and members of a sweep import."""
    own = (f"train_anywhere.training.{framework}.run", "train_anywhere.monitor.report.page", __name__)
    modules = (*own, *LATE_IMPORTS[framework])
    return ForkServer(modules, {**os.environ, **_thread_variables(ranks)}, address=address)


def run_members(
    members: Mapping[int, Config],
    make: Callable[[int], RunDir],
    ended: Callable[[int, RunDir, int], None],
    slots: int,
    log: bool,
    share: bool,
) -> str:
    """Run members as processes of this machine until a signal comes, which all get, and return its name, or "".

    Args:
        members: their configurations, by their numbers.
        make: returns the run folder of a member.
        ended: gets its exit code as of a shell. An error of both functions stops the other members.
        slots: the number of members that run at once.
        log: each writes into its own log, not to the streams of this process.
        share: each has its part of the CPUs and GPUs.
    """
    todo, live, received = [*members], dict[int, tuple[int, RunDir, Process]](), Signals()
    servers, count = dict[str, ForkServer](), slots if share else 1
    each, environ = (
        f"{count}/{len(usable_cpus()) // count}",
        with_engine(rank_environment() | _thread_variables(count)),
    )

    def pass_on(name: str) -> None:
        for _, _, process in live.values():
            process.send_signal(signal.Signals[name])

    with contextlib.ExitStack() as stack:
        for one in SIGNALS:
            stack.callback(signal.signal, one, signal.signal(one, received.handle))
        stack.callback(pass_on, "SIGTERM")
        while live or (todo and not received.requested):
            free = [slot for slot in range(slots) if slot not in live]
            for slot in free[: 0 if received.requested else len(todo)]:
                run, config = make(number := todo.pop(0)), members[number]
                if config.framework not in servers and not config.program:  # which imports none here
                    servers[config.framework] = fork_server(config.framework, count)
                start: Start = subprocess.Popen if config.program else servers[config.framework].start
                output = stack.enter_context(open_file(run.log, "ab")) if log else None
                # a new session, so that Ctrl-C reaches the process only once
                options = {"stdout": output, "stderr": output, "start_new_session": True}
                words = build_rank_command(run, "--member")
                live[slot] = number, run, start(words, env=environ | {SHARE: f"{slot}/{each}"}, **options)
            for name in received.wait(POLL_S):
                pass_on(name)
            for slot, (number, run, process) in [*live.items()]:
                if (code := process.poll()) is not None:
                    del live[slot]
                    ended(number, run, to_shell_code(code))
    return received.requested


def run_member(path: str) -> int:
    """Run a member of a sweep, a trial with the values that Optuna proposes, and return its exit code."""
    follow_parent()
    run = RunDir(Path(path))
    config = load_frozen(run)
    return run_here(run, config, local_layout(config))


def run_here(run: RunDir, config: Config, layout: Layout) -> int:
    """Train in `run` on this machine, next to its monitor process, and return the exit code of training.

    A single rank without retries trains in this process.
    """
    received = Signals()
    with run_monitor(run, config):
        if layout.world_size == 1 and not config.cluster.retries:
            return run_rank(run)
        protect_output()
        outlive_terminal()
        for number in SIGNALS:  # not SIGHUP: a run continues when its terminal is closed
            signal.signal(number, received.handle)
        place = LocalRun(run, config, layout.world_size)
        code = Supervisor(place, received).supervise()
        place.close()
    ended_by = (run.read_info().get(ATTEMPTS) or [{}])[-1].get("ended_by")
    interrupted = ended_by == "SIGINT" or received.requested == "Ctrl-C"
    return INTERRUPTED if code == STOPPED and interrupted else code


class LocalRun(RankPlace):
    """The place of the ranks on this machine, which are forks if they may start again."""

    def __init__(self, run: RunDir, config: Config, ranks: int = 1) -> None:
        self.run, self.config, self.ranks, self.several = run, config, ranks, ranks > 1
        self.retries, self.program = config.cluster.retries or None, bool(config.program)
        self.environ: dict[str, str] = {}
        self._server: ForkServer | None = None

    def start(self, number: int) -> "LocalRanks":
        """Start the ranks, with the environment variables that `discover` reads."""
        environs = _environments(self.ranks)
        if not number and self.retries and not self.program:
            self._server = fork_server(self.config.framework, self.ranks)
        if number:
            began = next_start(self.environ)
            environs = [{**environ, STARTED: began} for environ in environs]
        self.environ = environs[0]
        command = build_rank_command(self.run)
        start: Start = self._server.start if self._server else subprocess.Popen
        started = [start(command, env=e, start_new_session=True) for e in environs]
        if self._server and not all(isinstance(process, ForkedProcess) for process in started):
            why = f"The ranks start as new interpreters: {self._server.why_not}."
            print(why, file=sys.stderr, flush=True)
            self._server.close()
            self._server = None  # that is printed once
        # TensorFlow needs seconds to notice that a rank has ended
        return LocalRanks(started, *((AGAIN_GRACE_S, self.run.checkpoints) if self.retries else ()))

    def close(self) -> None:
        """Stop the process from which the ranks were forked."""
        if self._server:
            self._server.close()

    def publish(self, again: bool = False) -> None:
        """Publish the complete checkpoints that killed ranks left on this node's disk."""
        if self.program or not again:
            words = self.in_container("-m", "train_anywhere.checkpoints.recovery", str(self.run.path))
            subprocess.call(words, env=with_engine(), cwd=ROOT, start_new_session=True)

    def stop(self) -> None:
        """Let the ranks save a checkpoint and end."""
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def run_monitor(run: RunDir, config: Config) -> Iterator[None]:
    """Run the monitor process of this machine in the block, and features around it."""
    features = Features.of(config)
    with contextlib.ExitStack() as stack:
        if config.study or not config.trainer.fast_dev_run:
            features.supervise(LocalRun(run, config), stack)
        if features.on_node:
            command = [sys.executable, "-m", "train_anywhere.features.node", str(run.path), str(os.getpid())]
            pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    command, env=with_engine(), cwd=ROOT, start_new_session=True, stdin=pipe, stderr=quiet
                )
                stack.callback(_end_monitor, process)
        yield


def _end_monitor(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(MONITOR_EXIT_S)
    process.kill()  # it has no unwritten data
    process.communicate()


def refuse_nested_launch() -> None:
    """Raise ConfigError for `mpirun python src/train.py`, which would make several runs."""
    launcher, rank, world_size = find_launcher(os.environ)
    if world_size > 1:
        raise ConfigError(
            f"this process was started as rank {rank} of {world_size} by {launcher}, but the "
            f"project starts its ranks itself: run the command once, with launch={'|'.join(LAUNCHERS)} inside "
            "a job, or trainer.devices=N on one machine."
        )


def build_rank_command(run: RunDir, flag: str = "--run") -> list[str]:
    """Return the command of a rank, or with `--member` of a member of a sweep, that trains in a run folder."""
    return [sys.executable, "-u", str(ROOT / "src" / "train.py"), flag, str(run.path)]


def _environments(ranks: int) -> list[dict[str, str]]:
    """Return the environment of each rank. A single one needs no variables."""
    if ranks == 1:
        return [rank_environment()]
    # variables of an outer torchrun, whose store the ranks would wait for
    left = ("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE")
    shared = {
        **{k: v for k, v in rank_environment().items() if not k.startswith(left)},
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port(ranks + 16)),  # as many as a job has, for the libraries of a program too
        **_thread_variables(ranks),
    }
    return [{**shared, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]


def _thread_variables(ranks: int) -> dict[str, str]:
    """Share the CPUs among several ranks, unless the user has set the number of threads."""
    if ranks == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}


class LocalRanks:
    """Ranks on this machine, rank 0 first in `processes`.

    If one fails, the others are killed `grace` seconds later, or when they have written a checkpoint into `checkpoints`.
    """

    def __init__(
        self, processes: Sequence[Process], grace: float = 15.0, checkpoints: Path | None = None
    ) -> None:
        self._processes, self._grace, self._checkpoints = processes, grace, checkpoints
        self._failed: tuple[int, int] | None = None  # the first rank that failed, and its code
        self._deadline = 0.0
        self.failed_at: float | None = None

    def poll(self) -> int | None:
        """Return the exit code of the first rank that failed, or 0, or None while they run."""
        codes = [process.poll() for process in self._processes]
        if self._failed is None:
            # a rank that was killed is the cause of one that has lost it, if both have ended meanwhile
            ended = [(rank, code) for rank, code in enumerate(codes) if code]
            failed = min(ended, key=lambda one: one[1] > 0, default=None)
            if failed is None:
                return 0 if all(code == 0 for code in codes) else None
            self._failed, self._deadline = failed, time.monotonic() + self._grace
            self.failed_at = time.time()
        if None in codes:
            if time.monotonic() < self._deadline or self._writes():
                return None
            self.stop()
        self._report(*self._failed)
        return to_shell_code(self._failed[1])

    def _writes(self) -> bool:
        """Return whether a rank is writing a checkpoint."""
        running = {f".{process.pid}" for process in self._processes if process.poll() is None}
        return self._checkpoints is not None and any(
            p.suffix in running for p in self._checkpoints.glob(".*")
        )

    def pass_on(self, name: str) -> None:
        """Pass a signal on."""
        for process in self._processes:
            process.send_signal(signal.Signals[name])

    def stop(self) -> None:
        """Kill the ranks."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def first_exit(self) -> str:
        """Return which rank was killed first, or ""."""
        rank, code = self._failed or (0, 0)
        if code >= 0:
            return ""
        memory = ", often the memory limit" if -code == signal.SIGKILL else ""
        return f"rank {rank} on {node_name()}: {signal.Signals(-code).name}{memory}"

    def _report(self, rank: int, code: int) -> None:
        several = len(self._processes) > 1
        if code not in (STOPPED, INTERRUPTED, NOT_FINITE) and (several or code < 0):
            who = f"rank {rank} of {len(self._processes)}" if several else "the training process"
            rest = "; the other ranks were stopped." if several else "."
            print(f"{who} ended with {describe_exit_code(to_shell_code(code))}{rest}", file=sys.stderr)

"""A job as the place of its ranks: its nodes, their launcher, and commands next to them."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from train_anywhere.distributed import programs
from train_anywhere.distributed.discover import job_port
from train_anywhere.distributed.topology import expand_hosts
from train_anywhere.errors import REFUSED, STOPPED, ConfigError, ProjectError, SchedulerError, listed
from train_anywhere.job.requeue import ANSWER_S, JobQueue, end_after_death, is_first, stop_ranks
from train_anywhere.job.restart import Nodes
from train_anywhere.job.running_ranks import NodeSteps, RankLauncher, spawn
from train_anywhere.job.signals import Signals, StoppedAtStart
from train_anywhere.job.supervisor import RankPlace, Supervisor
from train_anywhere.runs.attempts import STARTED, next_start, running_job

CLOSE_S = 5.0
"""Seconds for the processes from which ranks were forked to end."""


def supervise_job(options: argparse.Namespace, report_launcher: Callable[[int], None]) -> int:
    """Supervise the ranks of this job. `report_launcher` gets each launcher's process group."""
    signals = Signals(options.signals)
    job = JobRanks(options, signals, report_launcher)
    queue, supervisor = job.queue, Supervisor(job, signals)
    if options.died is not None:
        job.list_hosts()
        return end_after_death(supervisor, queue, options.died, options.launcher)
    if options.not_started:
        signals.wait(0)
        print(f"Asked to stop ({signals.requested}) before the ranks were started.", flush=True)
        code = STOPPED
    else:
        with ExitStack() as stack:
            ready = not options.features or job.enter_features(stack)
            job.code = code = supervisor.supervise() if ready else REFUSED
            job.close()
    supervisor.note_end()
    if code == STOPPED and job.run.read_state() == "cancelled":  # a pruned trial
        return 0
    once = job.launcher_killed and code not in (0, STOPPED) and is_first(job.run)
    if (code == STOPPED or once) and options.requeue:
        queue.come_back(job.run, supervisor.hung)
    if queue.is_cancelled():  # no job of the run takes GPUs again
        queue.stay_away(ended=True)
    elif code == STOPPED and not options.requeue and queue.find_next_jobs():
        print("The next job of the chain continues.", flush=True)
        return 0
    return code


class JobRanks(RankPlace):
    """The place of the ranks in a job. `report_launcher` gets the process group of each launcher."""

    announces = True

    def __init__(
        self, options: argparse.Namespace, signals: Signals, report_launcher: Callable[[int], None]
    ) -> None:
        self.options, self.signals, self.steps = options, signals, NodeSteps(options)
        self.queue = JobQueue(self.steps, signals)
        self.run, self.environ = self.steps.run, self.steps.environ
        self.report_launcher, self.retries = report_launcher, options.retries
        self.program, self.requeues = options.program, options.requeue
        self.code: int | None = None
        self.launcher_killed = False
        self._nodes: Nodes | None = None
        self._idle: tuple[str, ...] = ()
        self._warm: subprocess.Popen[bytes] | None = None
        self._warm_hosts: list[str] = []
        self._given_port = os.environ.get("MASTER_PORT", "")
        counted = os.environ.get("SLURM_RESTART_COUNT") or 0 if self.steps.slurm else 0
        self._restarts = int(counted if options.restarts is None else options.restarts) + (options.slot or 0)

    def list_hosts(self) -> list[str]:
        """Return the nodes of this job. Raises Stopped if a signal came while Slurm did not answer."""
        if not self.steps.hosts and self.steps.slurm:
            self.use_nodes(tuple(expand_hosts(self.environ["SLURM_JOB_NODELIST"])))
        elif not self.steps.hosts:
            self.steps.hosts = list(dict.fromkeys(Path(self.environ["PBS_NODEFILE"]).read_text().split()))
        return self.steps.hosts

    def find_nodes(self) -> Nodes:
        """Return the nodes of an elastic job, and those on which a process starts."""
        used = (*self.steps.hosts, *self._idle)
        if not self.steps.elastic:
            return Nodes((), (), 1)
        if self._nodes:
            return self._nodes
        answering: list[str] = []
        job, asked = self.environ["TRAIN_JOB"], list(used)
        shown = self.queue.ask("squeue", "--noheader", f"--jobs={job}", "--format=%N") or ""
        with suppress(ProjectError):  # without an answer each node is asked
            there = {*expand_hosts(shown)}  # without nodes that Slurm has marked as down
            asked = [host for host in used if host in there] or asked

        def ask() -> bool:
            with ThreadPoolExecutor(64) as pool:
                found = zip(asked, pool.map(self._answers, asked), strict=True)
                answering[:] = [host for host, answers in found if answers]
            return bool(answering)  # if no node answers, not even this one, Slurm itself does not

        self.queue.persist(ask)
        self._nodes = Nodes(used, tuple(answering), self.options.fewest, self.options.counts)
        return self._nodes

    def _answers(self, host: str) -> bool:
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end:
            with suppress(SchedulerError):
                step = [*self.steps.one_task_on(host), "true"]
                if programs.run(step, end - time.monotonic(), environ=self.environ).code == 0:
                    return True
            time.sleep(3)
        return False

    def use_nodes(self, nodes: tuple[str, ...]) -> None:
        """Start the ranks on these nodes from now on, those of an elastic job that share the batch evenly."""
        if counts := self.options.counts:
            chosen = Nodes(nodes, nodes, self.options.fewest, counts).choose(nodes)
            nodes, self._idle = chosen or nodes, nodes[len(chosen) :] if chosen else ()
        if self._idle:
            print(f"{len(nodes)} nodes share the batch evenly; idle: {listed(self._idle)}.", flush=True)
        self.steps.hosts = [*nodes] or self.steps.hosts

    def _place_ranks(self, number: int) -> None:
        """Set the variables with which the ranks find each other. Raises Stopped."""
        o, hosts = self.options, self.list_hosts()
        self.several = o.ranks > 1 or (o.uneven or len(hosts)) > 1
        listed = self._ask_places() if o.uneven else ",".join(f"{host}:{o.ranks}" for host in hosts)
        # for mpirun: Slurm's variables still name the nodes with which the job started
        if self.steps.elastic:
            names, count = ",".join(hosts), str(len(hosts))
            self.environ |= {"SLURM_NNODES": count, "SLURM_JOB_NUM_NODES": count}
            self.environ |= {"SLURM_NODELIST": names, "SLURM_JOB_NODELIST": names}
            self.environ["SLURM_TASKS_PER_NODE"] = f"{o.ranks}(x{count})"
            self.environ["SLURM_JOB_CPUS_PER_NODE"] = f"{o.ranks * o.cpus_per_task}(x{count})"
        first = listed.partition(":")[0]
        if number:
            self.environ[STARTED] = next_start(self.environ)
        port = str(self._port(first, number))
        self.environ |= {"TRAIN_HOSTS": listed, "MASTER_ADDR": first, "MASTER_PORT": port}
        self.steps.override_image()

    def _ask_places(self) -> str:
        """Return the nodes with their ranks, as Slurm distributes them."""
        o, found, refusals = self.options, list[str](), set[str]()
        # the options of the launcher that place the ranks; of two --distribution the last counts
        words = [w for w in o.command if w.startswith(("--distribution=", "--nodelist="))]
        step = ["srun", "--distribution=block", *words, f"--cpus-per-task={o.cpus_per_task}", "--export=ALL"]
        step += [f"--nodes={len(self.steps.hosts)}", f"--ntasks={o.uneven}"]
        # of mpirun, whose own srun starts only on the other nodes, with SLURM_GPUS
        step += [f"--gpus={o.gpus}"] if o.gpus else []
        step += ["bash", "-c", 'echo "$SLURM_PROCID $SLURMD_NODENAME"']

        def ask() -> bool:
            self.signals.wait(0)
            if self.signals.requested:
                raise StoppedAtStart
            with suppress(SchedulerError):
                answer = programs.run(step, 120, environ=self.environ)
                rows = sorted(line.split() for line in answer.out.splitlines()) if answer.code == 0 else []
                found[:] = [host for _, host in sorted((int(rank), host) for rank, host in rows)]
                if not found and answer.message not in refusals:
                    refusals.add(answer.message)
                    why = f"Slurm refuses a step that shows the places of the ranks, asking again: {answer.message}"
                    print(why, file=sys.stderr, flush=True)
            return bool(found)

        self.queue.persist(ask)
        return ",".join(f"{host}:{found.count(host)}" for host in dict.fromkeys(found))

    def _port(self, host: str, number: int) -> int:
        """Return the port at which the ranks meet, another one at each start."""
        digits = re.match(r"\d+", running_job(self.environ) or "0")
        port, given = job_port(int(digits[0]) if digits else 0, number, self._restarts), self._given_port
        if not given or number or self._restarts or self.options.array:
            return port
        usable = re.fullmatch("[1-9][0-9]{3,4}", given) and int(given) < 65520
        if usable and not any(_listens(one, int(given)) for one in (host, "127.0.0.1")):
            return int(given)
        why = f"MASTER_PORT={given} is taken on {host}, or not a port from 1024 to 65519"
        print(f"{why}: the ranks meet at port {port}.", flush=True)
        return port

    def explain(self, name: str) -> str:
        """Return USR1 if this job will return to the queue after a signal, else TERM."""
        return self.queue.explain(name)

    def start(self, number: int) -> RankLauncher:
        """Start the launcher of the ranks, and what runs next to them. Raises Stopped."""
        self._place_ranks(number)
        self._nodes, self.launcher_killed = None, False
        ranks = self.options.uneven or self.options.ranks * len(self.steps.hosts)
        placeholders = {
            "name": [self.run.id],
            "nodes": [str(len(self.steps.hosts))],
            "nodelist": [",".join(self.steps.hosts)],
            "ranks": [str(ranks)],
            "hosts": [self.environ["TRAIN_HOSTS"]],
            "exports": [w for name in self.steps.exports() for w in ("-x", name)],
            "names": self.steps.names_in_container(),
        }
        process = spawn(fill(self._warm_command(number), placeholders), self.environ)
        self.report_launcher(process.pid)  # before anything else, so that the script can end it
        return RankLauncher(self, process)

    def stop_orphans(self, group: int) -> None:
        """Stop ranks whose launcher was killed."""
        self.launcher_killed = True
        stop_ranks(self.queue, group)

    def _warm_command(self, number: int) -> list[str]:
        """Return the command of the ranks, as forks if they may start again."""
        o = self.options
        if o.retries is None or self.program or o.slot is not None:
            return list(o.command)
        before, rank = o.command[:-4], o.command[-4:]
        if o.launch != "srun" or o.uneven or not re.fullmatch(r"-u .*/train\.py --run .*", " ".join(rank)):
            if number == 1:
                only = "only those of srun on even nodes are forks"
                print(f"The ranks start as new interpreters: {only}.", flush=True)
            return list(o.command)
        if self._warm and self._warm.poll() is not None and self._warm_hosts == self.steps.hosts:
            return list(o.command)  # it does not start on these nodes, or has ended
        if not self._warm or self._warm.poll() is not None:
            self._warm_hosts = [*self.steps.hosts]
            node = self.steps.in_container("-m", "train_anywhere.launch.warm_node", rank[-1])
            self._warm = self.steps.spawn_on_each_node(node, subprocess.DEVNULL)
        return [*before, "-m", "train_anywhere.launch.warm_rank", rank[-1]]

    def close(self) -> None:
        """End the processes from which the ranks were forked."""
        if self._warm and self._warm.stdin:
            self._warm.stdin.close()
            try:
                self._warm.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                self._warm.terminate()

    def in_container(self, *words: str) -> list[str]:
        """Return a command of the ranks' Python, inside the container if there is one."""
        return self.steps.in_container(*words)

    def run_on_each_node(self, command: Sequence[str]) -> None:
        """Run a command once on each node before the ranks start. A signal ends it."""
        if not self.steps.slurm:
            return
        self.list_hosts()
        process = self.steps.spawn_on_each_node(command)
        while process.poll() is None:
            self.signals.wait(0.1)
            if self.signals.requested:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                return

    def enter_features(self, stack: ExitStack) -> bool:
        """Call the features that act in a job, print failures, and return whether the ranks may start."""
        from train_anywhere.features import Features
        from train_anywhere.runs.reopen.frozen import load_frozen

        try:
            features = Features.of(load_frozen(self.run))
        except ProjectError as error:  # the ranks report it too
            print(f"error: {error}", file=sys.stderr, flush=True)
            return True
        try:
            features.supervise(self, stack)
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def stop(self) -> None:
        """Let the ranks save a checkpoint and end, as after a cancel."""
        self.signals.note("INT")

    def publish(self, again: bool = False) -> None:
        """Publish complete checkpoints on the disks of the nodes, see `supervisor.RankPlace`.

        A training has them on the node of rank 0. With torchrun or a program each node may have some.
        """
        every = self.program or self.options.launch == "torchrun"
        if again and not every:
            return
        hosts = self.find_nodes().left if self.steps.elastic else self.steps.hosts[: None if every else 1]
        command = self.in_container("-m", "train_anywhere.checkpoints.recovery", str(self.run.path))
        for host in hosts:
            step = [*self.steps.one_task_on(host), *self.steps.container_options(), *command]
            for pause in (1, 4, 0):
                process = spawn(step if self.steps.slurm else command, self.environ)
                if process.wait() == 0 or not self.steps.slurm:
                    break
                time.sleep(pause)


def fill(command: Sequence[str], words: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a command with placeholders replaced: `--nodes={nodes}`, or `{exports}`."""
    filled: list[str] = []
    for word in command:
        found = re.fullmatch(r"(--[\w-]+=)\{(\w+)\}", word)
        if word.startswith("{") and word[1:-1] in words:
            filled += words[word[1:-1]]
        elif found and found[2] in words:
            filled.append(found[1] + ",".join(words[found[2]]))
        else:
            filled.append(word)
    return filled


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 2):
            return True
    except OSError:
        return False

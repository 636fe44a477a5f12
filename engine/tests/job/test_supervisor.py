"""The supervisor of a job: it dies, Python does not start, signals come, children inherit."""

import argparse
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.scripts import (
    RECORD_START,
    RECORD_STOP,
    SCONTROL,
    make,
    python,
    render_supervised,
    run_script,
    snapshot,
    tool,
)
from tools.testbed.namespaces import is_running
from train_anywhere.config.schema import Config
from train_anywhere.errors import NOT_FINITE, STOPPED
from train_anywhere.job import requeue
from train_anywhere.job.batch_job import JobRanks, fill
from train_anywhere.job.running_ranks import ENDED, NodeSteps, find_first_exit
from train_anywhere.job.signals import Signals
from train_anywhere.job.supervisor import End
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import write_frozen
from train_anywhere.slurm.script.render import render

MakeConfig = Callable[..., Config]


@pytest.mark.parametrize(
    ("dies", "what", "code"),
    [("kill -9 $PPID; exec sleep 600", "the supervisor of the job", 1), ("kill -9 $$", "srun", 137)],
)
def test_a_killed_supervisor_or_launcher_ends_the_ranks_and_the_job_comes_back_once(
    make_config: MakeConfig, tmp_path: Path, dies: str, what: str, code: int
) -> None:
    scontrol, reason = SCONTROL.format(batch=1, folder=tmp_path), f"{what} was killed (signal SIGKILL)"
    ranks = f'case "$*" in *checkpoints.recovery*) exit ;; esac; {python(RECORD_START)}; echo $$ >{tmp_path}/rank; {dies}'
    for _ in range(2):
        began = time.monotonic()
        done = run_script(make_config, tmp_path, ranks, scontrol=scontrol)
        assert time.monotonic() - began < 200  # the ranks would sleep for 600 s
        info = RunDir(tmp_path).read_info()
        assert (info["state"], info["attempts"][-1]["reason"]) == ("failed", reason), done.stderr
        assert reason in done.stdout + done.stderr and not is_running(int((tmp_path / "rank").read_text()))
        assert (tmp_path / "requeued").read_text().count("requeue") == 1
    assert done.returncode == code


def test_a_link_of_a_chain_that_saves_has_not_failed(make_config: MakeConfig, tmp_path: Path) -> None:
    """As long as the next one waits, Slurm's exit code is 0; the last link still fails."""
    ranks = f"{python(RECORD_START)}; {python(RECORD_STOP)}; exit 75"
    for waits, code in ((True, 0), (False, 75)):
        (folder := tmp_path / str(code)).mkdir()
        tool(folder / "squeue", f"echo '8|PENDING|{folder}/job.sbatch'" if waits else "true")
        done = run_script(make_config, folder, ranks, words=["cluster.requeue=false"])
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout.count("The next job of the chain continues.") == waits


def test_a_python_that_does_not_start_is_one_message(make_config: MakeConfig, tmp_path: Path) -> None:
    """Neither a requeue nor a traceback follows, and the ranks are not started."""
    for broken in ("/nothere/python", "/bin/false"):
        scontrol = SCONTROL.format(batch=1, folder=tmp_path)
        tool(tmp_path / "scontrol", scontrol)
        made = make(make_config, run=str(tmp_path), code=str(tmp_path))
        snapshot(tmp_path)
        tool(tmp_path / "srun", f"touch {tmp_path}/started")
        (tmp_path / "job.sbatch").write_text(render_supervised(made, broken))
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}
        done = subprocess.run(
            ["bash", str(tmp_path / "job.sbatch")], env=environ, capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.count(f"error: {broken} does not start on ") == 1
        assert not (tmp_path / "started").exists() and not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("variable", ["PYTHONHOME=/nothere", "PYTHONPATH=/nothere", "PATH=/nothere:$PATH"])
def test_the_environment_of_the_ranks_does_not_reach_the_supervisor(make_config, tmp_path, variable):
    name = variable.partition("=")[0]
    setup = [f"export {variable}"]
    done = run_script(make_config, tmp_path, f'echo "{name}=${name}"', setup=setup, side="exit")
    assert done.returncode == 0 and f"{name}=" in done.stdout and "/nothere" in done.stdout, done.stderr


def test_a_launcher_has_default_signals_and_a_session_of_its_own(make_config, tmp_path):
    """The script's shell may ignore signals. libc keeps those from 32 on."""
    look = "grep -E 'Sig(Blk|Ign)' /proc/self/status; readlink /proc/$$/fd/0; ps -o sid= $$; echo $$"
    done = run_script(make_config, tmp_path, look, setup=["trap '' HUP QUIT USR2"])
    blocked, ignored, stdin, session, pid = [line.split()[-1] for line in done.stdout.split("\n") if line]
    named = (1 << 31) - 1
    assert int(blocked, 16) & named == int(ignored, 16) & named == 0
    assert stdin == "/dev/null" and session == pid


def start_script(make_config: MakeConfig, folder: Path, *setup: str) -> "subprocess.Popen[str]":
    """Start a job whose rank handles USR1, with a shell line in the place of srun."""
    ranks = (
        f"trap 'exit 75' USR1; {python(RECORD_START)} & wait $!; echo training; while :; do sleep 0.1; done"
    )
    RunDir(folder).update(state="queued")
    snapshot(folder)
    write_frozen(RunDir(folder), make_config(), [])
    tool(folder / "srun", f'case "$*" in *checkpoints.recovery*|*features.node*) exit ;; esac; {ranks}')
    tool(folder / "scontrol", SCONTROL.format(batch=1, folder=folder))
    script = folder / "job.sbatch"
    script.write_text(render(make(make_config, run=str(folder), code=str(folder), setup=list(setup))))
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}
    return subprocess.Popen(
        ["bash", str(script)], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def signalled(make_config: MakeConfig, folder: Path, numbers: tuple[int, ...], after: float) -> str:
    """Return the output of a job that gets signals some seconds after sourcing start.sh."""
    with start_script(make_config, folder, "echo set up", "sleep 0.5") as process:
        # before its first line, bash itself would end; Slurm's job would too
        children = Path(f"/proc/{process.pid}/fd")
        while not any(
            os.readlink(one).startswith("pipe:") for one in children.iterdir() if int(one.name) > 9
        ):
            time.sleep(0.001)
        time.sleep(0.02 + after)
        for number in numbers:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert (folder / "requeued").read_text() == "requeue 7\n"
    return out


@pytest.mark.parametrize("numbers", [(signal.SIGUSR1,), (signal.SIGTERM,), (signal.SIGUSR1, signal.SIGUSR1)])
@pytest.mark.quick("numbers0")
def test_a_signal_at_any_moment_brings_the_job_back(make_config, tmp_path, numbers):
    for n in range(3):
        (folder := tmp_path / str(n)).mkdir()
        out = signalled(make_config, folder, numbers, random.uniform(0, 2.5))
        assert out.count("Asked to stop") == 1 and out.count("back to the queue") == 1


def test_placeholders_are_those_of_options_and_whole_words() -> None:
    words = {"nodes": ["2"], "exports": ["-x", "PATH"], "hosts": ["a:1,b:1"]}
    command = ["srun", "--nodes={nodes}", "-H", "{hosts}", "{exports}", "/x/{nodes}", "--run={nodes}.y"]
    filled = ["srun", "--nodes=2", "-H", "a:1,b:1", "-x", "PATH", "/x/{nodes}", "--run={nodes}.y"]
    assert fill(command, words) == filled


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "srun: error: n1: task 1: Killed\nsrun: error: n2: task 2: Exited with exit code 1\n",
            "rank 1 on n1: SIGKILL, often the memory limit",
        ),
        ("srun: error: Node failure on n3\nsrun: error: n1: task 0: Killed\n", "node n3 failed"),
        ("srun: error: n[1-2]: tasks 0-1: Exited with exit code 1\n", ""),
        ("srun: error: n2: task 5: Segmentation fault (core dumped)\n", "rank 5 on n2: SIGSEGV"),
        ("srun: error: n2: task 0: Out Of Memory\n", "rank 0 on n2: SIGKILL, often the memory limit"),
        ("rank 3 ended with signal SIGABRT; the other ranks were stopped. Details: x\n", "rank 3: SIGABRT"),
        (
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).\n",
            "rank 1 on n2: SIGKILL, often the memory limit",
        ),
    ],
)
def test_the_first_killed_rank_is_found_in_the_log(log: str, cause: str) -> None:
    assert find_first_exit(f"before\n{log}after\n") == cause
    assert ENDED.search(f"before\n{log}after\n") and not ENDED.search(
        "srun: Step created for StepId=7.1\nrank 1 of 2\n"
    )


@pytest.mark.parametrize(
    ("words", "warm", "starts"),
    [
        (["cluster.retries=2"], "exec cat", ["warm_rank", "warm_rank"]),
        (["cluster.retries=2"], "exit 1", ["warm_rank", "train.py"]),
        (["cluster.retries=2", "launch=torchrun"], "exec cat", ["train.py", "train.py"]),
        ([], "exec cat", ["train.py"]),
    ],
)
def test_ranks_that_may_start_again_are_forks_of_one_process_on_each_node(
    make_config: MakeConfig, tmp_path: Path, words: list[str], warm: str, starts: list[str]
) -> None:
    """It outlives their restarts. Without it, or without srun, ranks are new interpreters."""
    complete = python("RunDir(Path(sys.argv[-1])).update(state='completed')")
    ranks = f"echo $* >>{tmp_path}/ranks; {python(RECORD_START)}; [ $(wc -l <{tmp_path}/ranks) = 2 ] && {complete} || exit 3"
    ranks = f'case "$*" in *checkpoints.recovery* | *" cat") exit ;; esac; {ranks}'
    warm = f"echo $* >>{tmp_path}/warm; {warm}"
    done = run_script(make_config, tmp_path, ranks, words=words, warm=warm)
    started = (tmp_path / "ranks").read_text().splitlines()
    assert ["warm_rank" if "warm_rank" in line else "train.py" for line in started] == starts, done.stderr
    assert all(line.endswith(f" {tmp_path}") for line in started)
    steps = (tmp_path / "warm").read_text().splitlines() if (tmp_path / "warm").exists() else []
    assert len(steps) == ("warm_rank" in starts) and all(
        "--whole" in one and "--cpu-bind=none" in one for one in steps
    )
    assert done.returncode == (0 if len(starts) == 2 else 3)
    assert done.stdout.count("start as new interpreters") == ("launch=torchrun" in words)


def hangs(node: str) -> str:
    """A shell line that ends ranks as the monitor does with `monitor.hang=requeue`."""
    ends = f"end_run(RunDir(Path(sys.argv[-1])), [], 'preempted', {node!r}, ended_by='hang', step=3)"
    return python(f"from train_anywhere.features.hangs.stacks import end_run; {ends}") + "; exit 137"


@pytest.mark.parametrize(
    ("node", "retries", "starts", "says"),
    [
        ("", 2, 2, "the ranks hung after step 3; retry 1 of 2, from the newest checkpoint"),
        ("", 1, 3, "the ranks hung after step 3; cluster.retries=1 allows no more: requeueing the job."),
        ("node1", 2, 3, "the ranks hung after step 3; not the first time on node1: requeueing the job."),
    ],
)
def test_ranks_that_hang_start_again_in_the_job(make_config, tmp_path, node, retries, starts, says):
    """A second hang of a node requeues it, and so does a hang without retries left. The last start completes."""
    complete = python("RunDir(Path(sys.argv[-1])).update(state='completed')")
    count = f"$(wc -l <{tmp_path}/ranks)"
    ranks = f"echo >>{tmp_path}/ranks; {python(RECORD_START)}; [ {count} = {starts} ] && {complete} || {{ {hangs(node)}; }}"
    ranks = f'case "$*" in *checkpoints.recovery* | *" cat") exit ;; esac; {ranks}'
    words, scontrol = [f"cluster.retries={retries}"], SCONTROL.format(batch=1, folder=tmp_path)
    done = run_script(make_config, tmp_path, ranks, words=words, scontrol=scontrol)
    requeued = starts == 3
    assert says in done.stderr, done.stderr
    assert done.returncode == (75 if requeued else 0)
    assert (tmp_path / "requeued").exists() == requeued
    assert (tmp_path / "ranks").read_text().count("\n") == (1 if node else 2)


HOOK = """
import os, runpy, signal, sys
main, at, count = sys.argv[2], {at}, 0
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.link", "subprocess.Popen")
def hook(event, arguments):
    global count
    opened = event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int)
    written = opened and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if os.getpid() == own and (written or event in CHANGES):
        count += 1
        if count == at:
            os.kill(own, signal.SIGKILL)
own = os.getpid()
sys.argv = sys.argv[2:]
if not os.path.exists({counts!r} + "-once"):
    open({counts!r} + "-once", "w")
    sys.addaudithook(hook)
try:
    runpy.run_path(main, run_name="__main__")
finally:
    open({counts!r}, "w").write(str(count))
"""


STOPS = f"{python(RECORD_START)}; {python(RECORD_STOP)}; exit 75"


def killed_at(make_config: MakeConfig, folder: Path, at: int, ranks: str = STOPS) -> int:
    """Run a job whose supervisor dies at its n-th operation. Return its number of operations."""
    counts = folder / "counts"
    (folder / "hook.py").write_text(HOOK.format(at=at, counts=str(counts)))
    real = make(make_config).supervisor
    tool(folder / "python", f'exec {shlex.quote(real)} {folder}/hook.py "$@"')
    shown = f"$([ -e {folder}/requeued ] && echo PENDING || echo RUNNING)"
    scontrol = f'case "$1" in show) echo "JobState={shown} BatchFlag=1" ;; requeue) echo "$@" >>{folder}/requeued ;; esac'
    ranks = f'case "$*" in *checkpoints.recovery*) exit ;; esac; {ranks}'
    done = run_script(make_config, folder, ranks, scontrol=scontrol, supervisor=str(folder / "python"))
    info = RunDir(folder).read_info()
    assert (folder / "requeued").read_text() == "requeue 7\n", done.stdout + done.stderr
    assert info["state"] in ("preempted", "failed") and "Traceback" not in done.stderr, done.stderr
    return int(counts.read_text()) if counts.exists() else 0


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.quick("2")
def test_ranks_end_with_a_supervisor_that_dies_right_after_their_start(make_config, tmp_path, at):
    killed_at(make_config, tmp_path, at, f"trap '' TERM; echo $$ >{tmp_path}/rank; while :; do sleep 1; done")
    rank = tmp_path / "rank"
    assert not rank.exists() or not is_running(int(rank.read_text()))


def test_a_complete_run_stays_complete_if_its_supervisor_is_killed(make_config, tmp_path):
    """During the last message nothing is left to do, so the job does not come back."""
    scontrol = SCONTROL.format(batch=1, folder=tmp_path)
    complete = python("RunDir(Path(sys.argv[-1])).update(state='completed')")
    done = run_script(
        make_config, tmp_path, f"{python(RECORD_START)}; {complete}; kill -9 $PPID", scontrol=scontrol
    )
    assert (done.returncode, RunDir(tmp_path).read_info()["state"]) == (0, "completed"), done.stderr
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("listed", "asked"),
    [("node[1-2]\n", ["node1", "node2"]), (None, ["node1", "node2", "node3"]), ("\n", ["node1", "node2", "node3"])],
)  # fmt: skip
def test_a_node_that_slurm_took_out_of_the_job_is_not_waited_for(monkeypatch, listed, asked):
    """Each other one is asked, and all if Slurm does not answer."""
    monkeypatch.setenv("TRAIN_JOB", "7")
    options = {
        "run": Path("/run"), "scheduler": "slurm", "fewest": 1, "counts": (), "program": False, "signal_seconds": 0,
        "inside": "", "slot": None, "export": "",
    }  # fmt: skip
    job = JobRanks(argparse.Namespace(**options, retries=0, requeue=True, restarts=0), Signals(), print)
    job.steps.hosts, found = ["node1", "node2", "node3"], list[str]()
    monkeypatch.setattr(job.queue, "ask", lambda *command: listed)
    monkeypatch.setattr(job, "_answers", lambda host: found.append(host) or host == "node1")
    assert job.find_nodes().left == ("node1",) and sorted(found) == asked


def test_a_signal_while_slurm_does_not_answer_shortens_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time after the warning counts from the warning, not from the first failure."""
    reader, writer = os.pipe()
    options = argparse.Namespace(
        run=Path("/run"),
        scheduler="slurm",
        fewest=None,
        program=False,
        signal_seconds=0,
        inside="",
        export="",
    )
    queue = requeue.JobQueue(NodeSteps(options), Signals(reader))
    calls = []

    def call() -> bool:
        calls.append(os.write(writer, b"USR1\n"))
        return False

    began = time.monotonic()
    assert not queue.persist(call) and len(calls) == 1 and time.monotonic() - began < requeue.PAUSE_S


@pytest.mark.slow
def test_a_supervisor_killed_at_any_operation_loses_no_job(make_config: MakeConfig, tmp_path: Path) -> None:
    """The job comes back once, and its run folder can be read."""
    (tmp_path / "whole").mkdir()
    operations = killed_at(make_config, tmp_path / "whole", 0)
    assert operations >= 8
    for at in range(1, operations + 1):
        (folder := tmp_path / str(at)).mkdir()
        killed_at(make_config, folder, at)


@pytest.mark.parametrize(
    ("end", "verdict", "leaves_files"),
    [
        # the ranks saved and stopped
        (End(75, "preempted", begun=True, requested=True), "stopped", False),
        (End(143, "preempted", begun=True, requested=True), "stopped", False),
        (End(75, "preempted", begun=True, ranks_of_program=True), "stopped", True),
        (End(137, "preempted", begun=True, hung=True), "stopped", True),
        # a rank of a program was killed, and the launcher stopped the others
        (End(137, "preempted", begun=True, ranks_of_program=True), "failed", True),
        (End(137, "preempted", begun=True, requested=True, ranks_of_program=True), "stopped", False),
        # nobody recorded the end
        (End(0, "running", begun=True), "unrecorded", False),
        (End(0, "running", begun=True, ranks_of_program=True), "unrecorded", True),
        # a signal ended ranks that did not handle it yet
        (End(143, "running", begun=True, requested=True), "stopped", False),
        (End(1, "queued", begun=False, requested=True), "stopped", False),
        (End(1, "running", begun=True, requested=True), "failed", True),
        # a rank failed
        (End(137, "running", begun=True), "failed", True),
        (End(1, "failed", begun=True), "failed", True),
        # the ranks have recorded it, or never began
        (End(0, "completed", begun=True), "ended", False),
        (End(3, "running", begun=True), "ended", True),
        (End(2, "queued", begun=False), "ended", False),
        (End(127, None, begun=False), "ended", True),
        (End(1, "failed", begun=False), "ended", True),
    ],
)
def test_what_an_end_of_the_ranks_is(end: End, verdict: str, leaves_files: bool) -> None:
    """`NOT_FINITE` is 3: a loss of nan has its own record."""
    assert (NOT_FINITE, STOPPED) == (3, 75) and end.judge() == verdict
    assert end.leaves_files(STOPPED if verdict == "stopped" else end.code) == leaves_files

"""`python src/run.py` on this machine and as a dry run: accepted and refused arguments."""

import errno
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tools.testing.weights import info
from train_anywhere.commands import jobs
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.files.copy_files import with_descendants
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.program.run_program import _finish
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

SHOW = """
import json, os, sys
from pathlib import Path
rank = os.environ.get("RANK", "0")
Path(os.environ["TRAIN_RUN"], f"seen-{rank}").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
print("from rank", rank)
if "--fails" in sys.argv and rank == "1":
    sys.exit(7)
"""
HEAVY = {"torch", "tensorflow", "lightning", "keras", "numpy"}
MakeRun = Callable[..., tuple[Config, RunDir]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def script() -> Iterator[str]:
    """A program of this project that writes down what it got."""
    path = ROOT / "examples" / "programs" / f"show_{os.getpid()}.py"
    path.write_text(SHOW)
    yield str(path.relative_to(ROOT))
    path.unlink()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            str(ROOT / "src" / "run.py"),
            f"paths.results={tmp_path / 'results'}",
            *words,
        ]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, **options)  # type: ignore[call-overload, no-any-return]

    return start


def stopped(
    *words: str, number: int = signal.SIGUSR1, reaches: str = "it", environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Send a signal when the program is ready. Return exit code and output.

    It reaches `src/run.py`, or its process "group" as from mpirun, or "all" that it has started as from Slurm without cgroups.
    """
    command = [sys.executable, str(ROOT / "src" / "run.py"), *words]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environ or {})},
    )
    assert process.stdout
    while "ready" not in (line := process.stdout.readline()):
        assert line
    time.sleep(0.1)
    if reaches == "group":
        os.killpg(process.pid, number)
    for pid in with_descendants(process.pid) if reaches == "all" else [process.pid] * (reaches == "it"):
        os.kill(pid, number)
    try:
        printed = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    return process.returncode, printed


def seen(folder: Path, rank: int = 0) -> tuple[list[str], dict[str, str]]:
    words, environ = json.loads((folder / f"seen-{rank}").read_text())
    return words, environ


WORDS = [
    "a b",
    "c=$d",
    "--x=1",
    "${oc.env:HOME}",
    "",
    "it's",
    "new\nline",
    "é",
    "# x",
    "1",
    "null",
    "~",
    "--",
    "-m",
]


def test_arguments_arrive_as_they_are(run: Run, script: str, tmp_path: Path) -> None:
    done = run("--", script, *WORDS)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "results" / "latest").resolve()
    words, environ = seen(folder)
    assert words == WORDS
    assert folder.parent.name == Path(script).stem
    assert info(folder)["state"] == "completed"
    assert environ["TRAIN_PERSISTENT_CHECKPOINTS"] == str(folder / "checkpoints")
    assert environ["PYTHONPATH"].split(":")[:2] == [*dict.fromkeys((str(ROOT), str(ENGINE)))]
    # resumed by only the run folder, with the same arguments
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    (folder / "seen-0").unlink()
    done = run(f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert seen(folder)[0] == WORDS
    done = run(f"resume={folder}")
    assert done.returncode == 0 and "is complete. To start a new run: " in done.stdout
    assert "src/run.py -- " in done.stdout and "train longer" not in done.stdout


def test_two_ranks_know_each_other(run: Run, script: str, tmp_path: Path) -> None:
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "results" / "latest").resolve()
    both = [seen(folder, rank)[1] for rank in (0, 1)]
    assert [e["RANK"] + e["LOCAL_RANK"] + e["WORLD_SIZE"] for e in both] == ["002", "112"]
    assert both[0]["MASTER_PORT"] == both[1]["MASTER_PORT"]
    tasks = [json.loads(e["TF_CONFIG"]) for e in both]
    assert [t["task"]["index"] for t in tasks] == [0, 1] and len(set(tasks[0]["cluster"]["worker"])) == 2
    assert "[rank 1] from rank 1" in done.stdout and "\nfrom rank 0" in done.stdout
    assert info(folder)["state"] == "completed"


@pytest.mark.parametrize(
    ("launcher", "words", "noted"),
    [
        ("accelerate", ("accelerate", "launch"), True),
        ("mpirun", ("mpirun", "python"), True),
        ("torchrun", ("torchrun", "--nproc-per-node=1"), True),
        ("torchrun", ("torchrun",), False),
    ],
)
def test_a_launcher_that_starts_trainings_of_one_rank_is_noticed(
    run: Run, tmp_path: Path, launcher: str, words: tuple[str, ...], noted: bool
) -> None:
    """accelerate does with a configuration file of one process, mpirun without -np on a machine of one CPU."""
    program, tools = tmp_path / "sleeps.py", tmp_path / "bin"
    program.write_text("import time\ntime.sleep(4)\n")
    tools.mkdir()
    if launcher != "torchrun":
        (tools / launcher).write_text(f'#!/bin/sh\nshift\n{sys.executable} "$@"\nexit $?\n')
        (tools / launcher).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    size = ("trainer.devices=2", "trainer.accelerator=cpu")
    done = run(*size, "--", *words, str(program), env=environ)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if f"note: {launcher} started" in line]
    assert len(notes) == noted, done.stderr
    assert not noted or "started a training of 1 rank, and the run has 2 devices on 1 node" in notes[0]


def test_a_rank_that_fails_fails_the_run(run: Run, script: str, tmp_path: Path) -> None:
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script, "--fails")
    assert done.returncode == 7
    assert f"rank 1: {script} ended with exit code 7." in done.stderr and "Traceback" not in done.stderr
    assert info((tmp_path / "results" / "latest").resolve())["state"] == "failed"


def test_the_exit_code_of_a_failed_program_is_the_reason(run: Run, script: str, tmp_path: Path) -> None:
    (ROOT / script).write_text("raise SystemExit(7)")
    assert run("trainer.accelerator=cpu", "--", script).returncode == 7
    [attempt] = info((tmp_path / "results" / "latest").resolve())["attempts"]
    assert attempt["reason"] == f"rank 0: {script} ended with exit code 7"


def test_the_dry_run_shows_the_job_and_imports_no_framework(run: Run, script: str) -> None:
    environ = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    words = ("cluster=slurm", "trainer.nodes=3", "launch=torchrun", "dry_run=true", "--", script, "a b")
    done = run(*words, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "#SBATCH --nodes=3" in done.stdout and "torch.distributed.run" in done.stdout
    shown = done.stdout.partition("\ncluster  ")[2]
    assert f"\nprogram     {script} 'a b'\n" in shown
    assert not re.search(r"^(batch|framework|strategy)", shown, re.M)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "hydra" in loaded and not loaded & HEAVY


@pytest.mark.parametrize(
    "words, messages",
    [
        ([], ["no program is named"]),
        (["--"], ["no program is named"]),
        (["--", "nothing.py"], ["'nothing.py' is not a file"]),
        (["--", "no_such_command", "x.py"], ["'no_such_command' is neither a file nor a command of this environment"]),
        (["cluster=slurm", "--", "no_such_command"], ["'no_such_command' is neither a file nor a command of this environment"]),
        (["--", "-m"], ["-m names no module"]),
        (["program.folder=nowhere", "--", "train.py"], ["program.folder=nowhere is not a folder"]),
        (["program.metrics=loss: (.*", "--", "src/train.py"], ["is not a regular expression"]),
        (["program.metrics=loss: (.*)", "--", "src/train.py"], ["has no named group for a metric"]),
        (["--", "src/train.py", "{args.lr}"], ["{args.lr} in the arguments of the program has no value; add args.lr=VALUE"]),
        (["args.lrr=1", "--", "src/train.py"], ["no argument of the program uses args.lrr; write {args.lrr} after --"]),
        (["checkpoint.monitor=bits", "--", "src/train.py"], ["checkpoint.monitor=bits may be better high or low"]),
        (["--", "README.md"], ["README.md is neither a Python script (.py) nor executable"]),
        (["cluster=slurm", "--", "tests/template/test_readme.py"], ["is not in the copy of the project that a job runs"]),
        (["-m", "args.lr=range(0)", "--", "src/train.py", "{args.lr}"], ["is an empty sweep"]),
        (["--cfg", "job", "--", "src/train.py"], ["--cfg is not a flag of src/run.py"]),
        (["experiment=debug", "--", "src/train.py"], ["experiment: a key of a training"]),
        (
            ["optimizer.lr=3", "model=mlp", "clustr=x", "trainer.nodes=x", "--", "nothing.py"],
            ["optimizer.lr, model: a key of a training", "'nothing.py' is", "'clustr' is not a key", "trainer.nodes=x is not"],
        ),
    ],
)  # fmt: skip
def test_refused_with_all_problems_and_nothing_written(
    run: Run, tmp_path: Path, words: list[str], messages: list[str]
) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= len(messages) + 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["lr=0.1", "a,(it's"])
def test_a_training_is_not_resumed_as_a_program(run: Run, make_run: MakeRun, name: str) -> None:
    folder = make_run()[1].path
    folder = folder.rename(folder.with_name(name))
    done = run(f"resume={folder}", "cluster.partition=a,b")
    resume = f"resume={shlex.quote(str(folder))}"
    assert done.returncode == 2 and f"is a training: python src/train.py {resume}\n" in done.stderr


def test_what_can_not_be_started_is_refused_with_one_message(run: Run, script: str, tmp_path: Path) -> None:
    path = ROOT / script
    other = path.with_suffix("")
    other.write_text("#!/nothing/here\n")
    other.chmod(0o755)
    try:
        done = run("--", str(other))
    finally:
        other.unlink()
    assert done.returncode == 2 and "can't be started" in done.stderr and "#!/bin/bash" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert info((tmp_path / "results" / "latest").resolve())["state"] == "failed"


@pytest.mark.parametrize("handles", ["SIGUSR1", "SIGTERM", ""])
def test_a_signal_reaches_the_program(tmp_path: Path, handles: str) -> None:
    """A program gets the signal that it handles. Without a handler it exits and can be resumed."""
    path = ROOT / "examples" / "programs" / f"waits_{os.getpid()}.py"
    handler = (
        f"signal.signal(signal.{handles}, lambda *_: (print('saved', flush=True), sys.exit(0)))"
        if handles
        else ""
    )
    path.write_text(f"import signal, sys, time\n{handler}\nprint('ready', flush=True)\ntime.sleep(60)\n")
    try:
        code, printed = stopped(f"paths.results={tmp_path}", "--", str(path))
        assert code == 75 and ("saved" in printed) == bool(handles)
        assert info((tmp_path / "latest").resolve())["state"] == "preempted"
    finally:
        path.unlink()


def test_a_cancel_is_never_the_signal_to_save_and_return(script: str, tmp_path: Path) -> None:
    """A program may requeue its job at USR1, so TERM reaches it as TERM, in a job a little later."""
    (ROOT / script).write_text(
        "import signal, sys, time\n"
        "for n in (signal.SIGUSR1, signal.SIGTERM):\n    signal.signal(n, lambda n, _: sys.exit(print('got', n, flush=True)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    for environ in ({}, STEP):
        code, printed = stopped(
            f"paths.results={tmp_path}", "--", script, number=signal.SIGTERM, environ=environ
        )
        assert code == 75 and f"got {signal.SIGTERM.value}\n" in printed, printed


STEP = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_LOCALID"), "0"),
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"), "1"),
    "SLURM_STEP_NODELIST": "localhost",
}
"""The environment of `srun --ntasks=1`."""

COUNTS = """
import os, signal, sys, time
from pathlib import Path
got = []
signal.signal(signal.{handles}, lambda *_: got.append(1))
log = Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], "log").open("w")
print("ready", flush=True)
while not got:
    time.sleep(0.05)
time.sleep(1)
print("signals:", len(got), flush=True)
"""


@pytest.mark.parametrize("reaches", ["it", "group", "all"])
@pytest.mark.parametrize("handles", ["SIGUSR1", "SIGTERM"])
@pytest.mark.quick("SIGUSR1-it", "SIGUSR1-all")
def test_a_program_in_a_job_gets_one_signal(script: str, tmp_path: Path, handles: str, reaches: str) -> None:
    """Signals come from Slurm, with or without cgroups, or mpirun. A kept file does not delay.

    USR1 that Slurm sends to all processes ends a program that handles only TERM, as without this project.
    """
    (ROOT / script).write_text(COUNTS.format(handles=handles))
    keys = [f"paths.results={tmp_path / 'results'}", f"checkpoint.local={tmp_path / 'disk'}"]
    code, printed = stopped(*keys, "--", script, reaches=reaches, environ=STEP)
    ends = (handles, reaches) == ("SIGTERM", "all")
    assert code == 75 and ("signals: 1\n" in printed) != ends, printed
    assert (tmp_path / "results" / "latest" / "checkpoints" / "log").exists()


SHELL = """#!/bin/bash
{line}
sleep 20 >/dev/null 2>&1 & child=$!
echo ready
wait
"""


@pytest.mark.parametrize(
    "line, printed_there", [("trap 'echo saved; kill $child; exit 0' USR1", True), ("", False)]
)
def test_a_shell_script_may_trap_the_signal(tmp_path: Path, line: str, printed_there: bool) -> None:
    """A shell can't trap a signal that is ignored when it starts."""
    path = ROOT / "examples" / "programs" / f"traps_{os.getpid()}.sh"
    path.write_text(SHELL.format(line=line))
    path.chmod(0o755)
    try:
        code, printed = stopped(f"paths.results={tmp_path}", "--", str(path), environ=STEP)
    finally:
        path.unlink()
    assert code == 75 and ("saved" in printed) == printed_there


def test_lines_of_two_ranks_are_not_mixed(run: Run, script: str) -> None:
    """A program may write a line in two parts, as Python does with PYTHONUNBUFFERED=1."""
    (ROOT / script).write_text(
        "import os, time\nfor _ in range(50):\n    os.write(1, b'rea'); time.sleep(0.001)\n    os.write(1, b'dy\\n')\n"
    )
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script)
    lines = done.stdout.split("\n")
    assert lines.count("ready") == lines.count("[rank 1] ready") == 50, done.stdout


def test_cancel_stops_the_program_of_each_rank(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ROOT / script).write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    keys = [f"paths.results={tmp_path}", "trainer.devices=2", "trainer.accelerator=cpu"]
    command = [sys.executable, str(ROOT / "src" / "run.py"), *keys, "--", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process:
        assert process.stdout
        lines: list[str] = []
        while "".join(lines).count("ready") < 2:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        for verb, advice in (("save", "which saves by itself; `jobs.py cancel`"), ("profile", "whose steps")):
            assert jobs.main([verb, "--timeout", "1", "--results", str(tmp_path)]) == 2
            assert f"it is a program, {advice}" in capsys.readouterr().err
        assert jobs.main(["cancel", "--results", str(tmp_path)]) == 0
        assert "asks the program to stop." in capsys.readouterr().out
        printed = process.communicate(timeout=60)[0]
    assert process.returncode == 75 and printed.count("saved") == 2, printed
    assert info((tmp_path / "latest").resolve())["state"] == "preempted"


STOPS = """
import os, signal, sys, time
from pathlib import Path
if "--fails" in sys.argv:
    sys.exit(7)
if "--handles" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
else:
    file = Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], "a.pt")
    file.write_text("whole")
    while not Path(os.environ["TRAIN_PERSISTENT_CHECKPOINTS"], "a.pt").exists():
        time.sleep(0.1)
    half = file.open("w")
    half.write("ha")
    half.flush()
print("ready", flush=True)
time.sleep(60)
"""


def test_the_end_of_an_earlier_start_does_not_count(
    run: Run, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers start the same process ids again, and arguments may change at a resume."""
    (ROOT / script).write_text(STOPS)
    monkeypatch.setenv("MASTER_PORT", "12345")  # part of the name of a start
    assert run("--", script, "--fails").returncode == 7
    folder = (tmp_path / "results" / "latest").resolve()
    assert stopped(f"resume={folder}", "--", script, "--handles")[0] == 75
    assert info(folder)["state"] == "preempted"


def test_a_signal_to_all_processes_leaves_the_older_copy(script: str, tmp_path: Path) -> None:
    """Slurm signals the program too, which may exit before its files are known."""
    (ROOT / script).write_text(STOPS)
    keys = [
        f"paths.results={tmp_path / 'results'}",
        f"checkpoint.local={tmp_path / 'disk'}",
        "checkpoint.every_n_seconds=1",
    ]
    assert stopped(*keys, "--", script, number=signal.SIGTERM, reaches="group")[0] == 75
    folder = (tmp_path / "results" / "latest").resolve()
    assert (folder / "checkpoints" / "a.pt").read_text() == "whole"


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_in_a_terminal_reaches_the_program_once(script: str, tmp_path: Path, ranks: int) -> None:
    """Ranks of another process are not in the terminal's foreground, so they pass it on."""
    (ROOT / script).write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(1)\n    print('saved', flush=True)\n"
    )
    keys = [f"paths.results={tmp_path}", f"trainer.devices={ranks}", "trainer.accelerator=cpu"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(
            sys.executable, [sys.executable, str(ROOT / "src" / "run.py"), *keys, "--", str(ROOT / script)]
        )
    printed, sent, began = "", False, time.monotonic()
    with suppress(OSError):  # the terminal is closed
        while data := os.read(terminal, 2**16):
            printed += data.decode()
            if not sent and printed.count("ready") == ranks:
                sent = bool(os.write(terminal, b"\x03"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, printed
    os.close(terminal)
    assert printed.count("saved") == ranks and time.monotonic() - began < 40, printed


def of_a_job(run: RunDir, stop: Stop, launched_by: str = "srun") -> RankProcess:
    """Rank 0 of two, in a job."""
    RunRecorder(run).record_start(2)
    topology = Topology(world_size=2, launched_by=launched_by)
    return RankProcess(run, topology, stop, RunRecorder(run))


@pytest.mark.parametrize("launched_by", ["srun", "local"])
def test_rank_0_does_not_end_the_step_while_others_save(make_run: MakeRun, launched_by: str) -> None:
    """srun and `LocalRanks` kill them at any code but 0, so their callers read the state."""
    config, run = make_run()
    stop = Stop()
    stop.requested = "SIGUSR1"
    config = replace(config, program=replace(config.program, command=["a.py"]))
    assert _finish(config, of_a_job(run, stop, launched_by), 143) == 0
    assert info(run.path)["state"] == "preempted"
    assert _finish(config, of_a_job(run, Stop(), launched_by), 75) == 75  # the others may not know of it


def test_an_end_that_can_not_be_recorded_is_an_error(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = make_run()
    process = of_a_job(run, Stop())

    def full(*args: object, **fields: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDir, "update", full)
    config = replace(config, program=replace(config.program, command=["a.py"]))
    assert _finish(config, process, 0) == 1
    assert "can't be written" in capsys.readouterr().err
    monkeypatch.setattr("train_anywhere.program.run_program.OTHERS_S", 0)
    assert _finish(config, process, 7) == 7
    printed = capsys.readouterr().err
    assert "ended with exit code 7" in printed and "No space left" in printed


def test_the_program_of_another_user_needs_trust(
    run: Run, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--", script, "a").returncode == 0
    folder = (tmp_path / "results" / "latest").resolve()
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "someone"))
    done = run(f"resume={folder}")
    assert done.returncode == 2 and "program" in done.stderr and "trust=true" in done.stderr, done.stderr
    assert run(f"resume={folder}", "trust=true").returncode == 0

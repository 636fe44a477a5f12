"""Signals to src/run.py on this machine reach the program that it starts, and leave a run that can be resumed."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engine.tests.program.conftest import RUN, Latest
from tools.testing.weights import info
from train_anywhere.commands import jobs
from train_anywhere.files import ROOT


def stopped(
    *words: str, number: int = signal.SIGUSR1, reaches: str = "it", environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Send a signal when the program is ready. Return exit code and output.

    It reaches `src/run.py`, or its process "group" as from mpirun, or "all" that it has started as from Slurm without cgroups.
    """
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    known = {**os.environ, **(environ or {})}
    process = subprocess.Popen([*RUN, *words], start_new_session=True, env=known, **streams)
    assert process.stdout
    while "ready" not in (line := process.stdout.readline()):
        assert line
    time.sleep(0.1)
    if reaches == "group":
        os.killpg(process.pid, number)
    started = psutil.Process(process.pid)
    reached = {"it": [started], "all": [started, *started.children(recursive=True)]}
    for one in reached.get(reaches, []):
        os.kill(one.pid, number)
    try:
        printed = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    return process.returncode, printed


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


@pytest.mark.parametrize("reaches", ["it", "group", "all", "it here"])
@pytest.mark.parametrize("handles", ["SIGUSR1", "SIGTERM"])
@pytest.mark.quick("SIGUSR1-it", "SIGUSR1-all", "SIGTERM-it here")
def test_a_program_gets_one_signal(script: str, tmp_path: Path, handles: str, reaches: str) -> None:
    """Signals come from Slurm, with or without cgroups, mpirun, or without a job. A kept file does not delay.

    USR1 that Slurm sends to all processes ends a program that handles only TERM, as without this project.
    """
    (ROOT / script).write_text(COUNTS.format(handles=handles))
    keys = [f"paths.results={tmp_path / 'results'}", f"checkpoint.local={tmp_path / 'disk'}"]
    reaches, _, here = reaches.partition(" ")
    code, printed = stopped(*keys, "--", script, reaches=reaches, environ={} if here else STEP)
    assert info((tmp_path / "results" / "latest").resolve())["state"] == "preempted"
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
    (tmp_path / "traps.sh").write_text(SHELL.format(line=line))
    (tmp_path / "traps.sh").chmod(0o755)
    code, printed = stopped(f"paths.results={tmp_path}", "--", str(tmp_path / "traps.sh"), environ=STEP)
    assert code == 75 and ("saved" in printed) == printed_there


def test_cancel_stops_the_program_of_each_rank(script, tmp_path, capsys):
    (ROOT / script).write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    keys = [f"paths.results={tmp_path}", "trainer.devices=2", "trainer.accelerator=cpu"]
    command = [*RUN, *keys, "--", script]
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


def test_the_end_of_an_earlier_start_does_not_count(run, script, latest, monkeypatch):
    """Containers start the same process ids again, and arguments may change at a resume."""
    (ROOT / script).write_text(STOPS)
    monkeypatch.setenv("MASTER_PORT", "12345")  # part of the name of a start
    assert run("--", script, "--fails").returncode == 7
    folder = latest()
    assert stopped(f"resume={folder}", "--", script, "--handles")[0] == 75
    assert info(folder)["state"] == "preempted"


def test_a_signal_to_all_processes_leaves_the_older_copy(script: str, tmp_path: Path, latest: Latest) -> None:
    """Slurm signals the program too, which may exit before its files are known."""
    (ROOT / script).write_text(STOPS)
    keys = [f"paths.results={tmp_path / 'results'}", f"checkpoint.local={tmp_path / 'disk'}"]
    keys.append("checkpoint.every_n_seconds=1")
    assert stopped(*keys, "--", script, number=signal.SIGTERM, reaches="group")[0] == 75
    folder = latest()
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
        os.execv(sys.executable, [*RUN, *keys, "--", str(ROOT / script)])
    printed, sent = "", 0.0
    with suppress(OSError):  # the terminal is closed
        while data := os.read(terminal, 2**16):
            printed += data.decode()
            if not sent and printed.count("ready") == ranks:
                os.write(terminal, b"\x03")
                sent = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, printed
    os.close(terminal)
    assert printed.count("saved") == ranks and time.monotonic() - sent < 40, printed

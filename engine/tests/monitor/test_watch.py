"""The watch on real processes that only write heartbeats, and on two ranks of a training."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from engine.tests.monitor import test_hangs
from tools.testing.processes import start_python, wait_until
from train_anywhere.config.schema import Config
from train_anywhere.features.hangs.hangs import Hang
from train_anywhere.features.hangs.stacks import is_repeated_hang
from train_anywhere.features.hangs.watch import Stragglers, Watch
from train_anywhere.files import ROOT
from train_anywhere.monitor.heartbeat import place_of
from train_anywhere.runs.attempts import Outcome, recorded_reason, was_killed
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

RANK = """
import sys, time
from train_anywhere.distributed.topology import Topology
from train_anywhere.features.hangs import stacks
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from pathlib import Path

def collective(): time.sleep(60)

def elsewhere(): time.sleep(60)

rank, hangs_at, slow = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
own = Heartbeat()
own.open(RunDir(Path(sys.argv[1])), Topology(rank=rank, world_size=2))
writes = stacks.written_on_signal(own)
writes.__enter__()
own.enter("step", "data")
for step in range(10**6):
    own.fetched()
    if step == hangs_at or (Path(sys.argv[1]) / "hang now").exists():
        elsewhere() if rank else collective()
    time.sleep(slow * rank)
    own.computed()
    time.sleep(0.02)
    own.trained_batch(step + 1)
"""
"""A rank that writes its heartbeat and nothing else; at one step, or if a file exists, it never comes back. Rank 1 may be slow."""


@pytest.fixture
def ranks() -> Iterator[Callable[..., list["subprocess.Popen[bytes]"]]]:
    """`ranks(run, 5, 5)`: two processes that hang at step 5. `slow` delays rank 1's steps."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run: RunDir, *hang_at: int, slow: float = 0.0) -> list["subprocess.Popen[bytes]"]:
        for rank, step in enumerate(hang_at):
            words = [sys.executable, "-c", RANK, str(run.path), str(rank), str(step), str(slow)]
            started.append(subprocess.Popen(words, cwd=ROOT))
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()


Make = Callable[..., tuple[Config, RunDir]]
BATCH = {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"}


@pytest.fixture
def watched(make_run: Make) -> Iterator[Callable[..., tuple[RunDir, Watch]]]:
    made: list[Watch] = []

    def make(*overrides: str, **environ: str) -> tuple[RunDir, Watch]:
        config, run = make_run(*overrides)
        made.append(Watch(run, config, "here", environ))
        return run, made[-1]

    yield make
    for watch in made:
        watch.close()


def look_until(watch: Watch, there: Callable[[], bool]) -> None:
    wait_until(lambda: there() or watch.poll(time.time()))


def found(run: RunDir) -> dict[str, Any]:
    path = run.monitor / "watch.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def test_a_stopped_rank_is_named_with_the_stacks_of_all(watched, ranks, capsys):
    run, watch = watched("monitor.hang_minutes=0.05")
    processes = ranks(run, 10**6, 10**6)
    look_until(watch, lambda: len(watch.node.known) == 2 and watch.node.known[1].step > 3)
    for process in processes:  # rank 0 waits for rank 1, as in a collective
        os.kill(process.pid, signal.SIGSTOP)
    look_until(watch, lambda: bool(found(run).get("hang")))
    said = capsys.readouterr().out
    assert "ranks 0-1 on here hang in step" in said or "on here hangs in step" in said
    assert "its process is stopped" in said
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
    look_until(watch, lambda: found(run).get("hang") is None)
    assert "the ranks resumed" in capsys.readouterr().out
    assert {p.name for p in run.monitor.glob("stacks-*")} == {
        "stacks-here-rank0.txt",
        "stacks-here-rank1.txt",
    }


def test_a_line_of_the_log_is_in_the_file_when_it_is_printed(watched, ranks):
    """Programs that follow the log read watch.json at once."""
    run, watch = watched("monitor.hang_minutes=0.05", "monitor.hang=requeue")
    RunRecorder(run).record_start(2, {})
    watch.stragglers = Stragglers(window=0.3)
    files: dict[str, dict[str, Any]] = {}

    class Log(io.StringIO):
        def write(self, line: str) -> int:
            files[line] = found(run)
            return len(line)

    with redirect_stdout(Log()):
        processes = ranks(run, 10**6, 10**6, slow=0.02)
        look_until(watch, lambda: any("is slow" in line for line in files))
        (run.path / "hang now").touch()
        look_until(watch, lambda: all(p.poll() is not None for p in processes))
    slow, hang, end = (
        next(file for line, file in files.items() if words in line)
        for words in ("is slow", "Stack traces of all ranks", "stopped the ranks")
    )
    assert [rank["rank"] for rank in slow["slow"]] == [1]
    assert re.search("hangs? in step", hang["hang"]["line"]) and not hang["hang"]["end"]
    assert end["hang"]["end"] and len(end["hangs"]) == 1


def test_hang_requeue_leaves_the_run_as_after_a_preemption(watched, ranks, capsys):
    run, watch = watched("monitor.hang_minutes=0.05", "monitor.hang=requeue")
    RunRecorder(run).record_start(2, {})
    processes = ranks(run, 7, 7)
    look_until(watch, lambda: all(p.poll() == -signal.SIGKILL for p in processes))
    info = run.read_info()
    assert (info["state"], info["attempts"][-1]["ended_by"], info["attempts"][-1]["step"]) == (
        "preempted",
        "hang",
        7,
    )
    assert (run.monitor / "hang").read_text() == "local/0\n"
    assert found(run)["hangs"] == [{"step": 7, "start": "local/0", "host": None}]
    said = capsys.readouterr().out
    assert f"python src/train.py resume={run.path}" in said
    assert "in collective" in (run.monitor / "stacks-here-rank0.txt").read_text()
    assert "in elsewhere" in (run.monitor / "stacks-here-rank1.txt").read_text()
    RunRecorder(run).record_start(2, {})
    assert not was_killed(run, "local/0")


@pytest.mark.parametrize(
    ("environ", "words", "comes_back"),
    [
        (BATCH, [], True),
        (BATCH, ["cluster.requeue=false"], False),
        ({"SLURM_JOB_ID": "7", "TRAIN_ALLOCATION": "7"}, [], False),  # salloc
        ({"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH"}, [], False),
    ],
    ids=["batch", "requeue=false", "salloc", "pbs"],
)
def test_only_a_job_that_comes_back_is_said_to(watched, environ, words, comes_back):
    run, watch = watched("cluster=slurm", "monitor.hang=requeue", *words, **environ)
    said = watch._describe_end()
    assert ("the job will be requeued" in said) == comes_back
    assert (f"resume with: python src/jobs.py resubmit {run.path}" in said) != comes_back
    watch.hangs = [{"step": 7, "start": "1/0", "host": "here"}]
    waiting, behind = test_hangs.ranks({"host": "there"}, {"host": "here"})
    hang = Hang((behind,), (waiting,), 100, 7)
    assert ("requeued without it" in watch._exclude_node(hang, failed=False)[0]) == comes_back
    assert "requeued" not in watch._exclude_node(hang, failed=True)[0]


def test_the_third_hang_at_a_step_fails_the_run(watched, ranks, capsys):
    run, watch = watched("monitor.hang_minutes=0.05", "monitor.hang=requeue")
    RunRecorder(run).record_start(2, {})
    watch.hangs = [{"step": 7, "start": "1/0"}, {"step": 7, "start": "1/1"}]
    processes = ranks(run, 7, 7)
    look_until(watch, lambda: all(p.poll() is not None for p in processes))
    assert run.read_info()["state"] == "failed"
    why = "it hangs at step 7 for the 3rd time without progress, see the stack traces"
    assert recorded_reason(run.read_info()) == why
    assert "the run failed: it hangs at step 7 for the 3rd time without progress" in capsys.readouterr().out
    assert found(run)["hangs"] == []  # who resumes it has three times again


def test_progress_between_hangs_counts_anew() -> None:
    assert not is_repeated_hang([{"step": 7}], 7)
    assert is_repeated_hang([{"step": 7}, {"step": 7}], 7)
    assert not is_repeated_hang([{"step": 7}, {"step": 7}], 8)
    assert not is_repeated_hang([{"step": 7}, {"step": 7}, {"step": 9}], 9)


def test_heartbeats_of_killed_ranks_are_removed_at_the_end(watched, ranks):
    run, watch = watched("monitor.hang_minutes=1")
    processes = ranks(run, 10**6, 10**6)
    look_until(watch, lambda: len(watch.node.known) == 2)
    folder = place_of(run).path
    watch.close()
    assert folder.is_dir()  # they are alive
    for process in processes:
        process.kill()
        process.wait()
    watch.close()
    assert not folder.exists()


def test_ranks_of_an_earlier_start_are_not_seen(watched, ranks):
    run, watch = watched("monitor.hang_minutes=1")
    for process in ranks(run, 0, 0):
        while not list(place_of(run).path.glob("rank-*[0-9]")):
            time.sleep(0.05)
        process.kill()
        process.wait()
    watch.poll(time.time())
    assert watch.node.known == {}


def test_the_first_node_learns_of_the_others_by_their_files(make_run, ranks):
    """Two named watches stand for two nodes. The local process is rank 1, of the second."""
    config, run = make_run("monitor.hang_minutes=0.05")
    hosts = {"TRAIN_HOSTS": "here:1,there:1"}
    first, second = (Watch(run, config, host, hosts) for host in ("here", "there"))
    assert first.others and not second.others
    first.node.place = place_of(RunDir(run.path.parent / "nobody"))
    ranks(run, 3, 3)
    first.startup.patience = 0

    def both() -> bool:
        second.poll(time.time())
        return bool(found(run).get("hang"))

    look_until(first, both)
    assert found(run)["hang"]["ranks"] == [0, 1]
    assert json.loads((run.monitor / "ranks-there.json").read_text())["ranks"][1]["host"] == "there"
    look_until(second, (run.monitor / "stacks-there-rank1.txt").exists)
    second.node.close()


def test_an_ended_run_has_no_hang(make_run: Make) -> None:
    config, run = make_run("monitor.hang_minutes=0.01")
    RunRecorder(run).record_start(1, {})
    RunRecorder(run).record_end(Outcome("completed", 1, 1, {}, None))
    watch = Watch(run, config, "here", {})
    watch.poll(time.time())
    assert found(run)["hang"] is None


@pytest.mark.parametrize(
    "words",
    [
        ["framework=lightning"],
        pytest.param(["framework=keras", "strategy=horovod"], marks=[pytest.mark.slow, pytest.mark.horovod]),
    ],
    ids=lambda w: w[0],
)
def test_one_of_two_ranks_of_a_training_is_stopped(tmp_path: Path, words: list[str]) -> None:
    """It is named with its stack after 6 s. Then the run exits and prints how to resume."""
    options = ["trainer.devices=2", "trainer.max_epochs=500", "model.width=8", "monitor.tensorboard=false"]
    watch = ["monitor.hang_minutes=0.1", "monitor.hang=requeue", "monitor.progress=none"]
    more = {"stderr": subprocess.STDOUT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    command = ["-u", ROOT / "src/train.py", *options, *words, *watch, f"paths.results={tmp_path}"]
    with start_python(*command, **more) as process:
        monitor = tmp_path / "latest" / "monitor"
        victim = wait_for_step(monitor, 5)
        os.kill(victim["pid"], signal.SIGSTOP)
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 75, out
    assert "rank 1 on" in out and "its process is stopped; rank 0 waits for it." in out
    assert f"python src/train.py resume={(tmp_path / 'latest').resolve()}" in out
    stacks = {p.name.rpartition("-")[2]: p.read_text() for p in monitor.glob("stacks-*")}
    assert stacks.keys() == {"rank0.txt", "rank1.txt"}
    assert "engine/train_anywhere/training" in stacks["rank0.txt"]
    assert "MainThread" in stacks["rank1.txt"]  # by py-spy: a stopped process hears no signal
    info = json.loads((tmp_path / "latest" / "run.json").read_text())
    assert (info["state"], info["attempts"][-1]["ended_by"]) == ("preempted", "hang")


def wait_for_step(monitor: Path, step: int) -> dict[str, Any]:
    """Rank 1, once both ranks have trained for a few steps."""
    found: list[dict[str, Any]] = []

    def trained() -> bool:
        found[:] = [r for path in monitor.glob("ranks-*.json") for r in json.loads(path.read_text())["ranks"]]
        return len(found) == 2 and all(r["step"] > step for r in found)

    wait_until(trained)
    return found[1]

"""Several ranks are killed one after the other: saved checkpoints are published and resumed.

CHAOS_KILLS=10 kills so often, the later ones at random moments; the short form kills each rank once.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import run_python
from train_anywhere.checkpoints.disk.manifest import find_damage
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.files import ROOT

KILLS = max(2, int(os.environ.get("CHAOS_KILLS", "0")) // 20)
SIGNALS = (signal.SIGKILL, signal.SIGSEGV)
"""What ends rank 0 and rank 1."""

MEMORY = Path("/sys/fs/cgroup/memory")
"""Control groups, version 1: what limits a job's memory on clusters."""

OPTIONS = (
    "model=mlp", "model.dropout=0.3", "data.batch_size=64", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.max_epochs=12",
    "checkpoint.every_n_steps=3", "monitor.progress=none",
)  # fmt: skip
STRATEGIES = [
    ("lightning", "ddp"),
    ("lightning", "fsdp"),
    ("lightning", "horovod"),
    ("keras", "multiworker_mirrored"),
    ("keras", "horovod"),
]

LOOK = """
import json, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/engine", {here!r}]
from trainees import Framework
from train_anywhere.checkpoints.store import CheckpointStore, Retention
from train_anywhere.runs.folder import RunDir
run, trainee = RunDir(Path({run!r})), Framework({framework!r})
newest = CheckpointStore(run.checkpoints, Retention("max", 2)).newest_good()
print(json.dumps([newest.step, trainee.weights(newest), trainee.curves(run)]))
"""


def outcome(framework: str, run: Path) -> Any:
    """Read step, weights and curves of a run in a separate process."""
    script = LOOK.format(root=str(ROOT), here=str(Path(__file__).parent), run=str(run), framework=framework)
    done = run_python("-c", script, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "src" / "train.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def ranks(results: Path) -> list[int]:
    """Process ids of the ranks that train below a folder, rank 0 first."""
    command = ["pgrep", "-f", "--", f"train.py --run {re.escape(str(results))}"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in listed]


def newest_step(results: Path) -> int:
    """Return the step of the newest published checkpoint, or 0."""
    pointers = list(results.glob("digits/*/checkpoints/newest"))
    return int(pointers[0].read_text()) if pointers else 0


def wait_for_checkpoint(process: subprocess.Popen[str], results: Path) -> None:
    """Wait until the run has published another one, or is over."""
    before, end = newest_step(results), time.monotonic() + 300
    while newest_step(results) == before and process.poll() is None:
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str], results: Path, victim: int, delay: float) -> bool:
    """Kill a rank `delay` seconds after the next checkpoint. False if the run was over before."""
    wait_for_checkpoint(process, results)
    time.sleep(delay)
    processes = ranks(results)
    if len(processes) == 2:
        os.kill(processes[victim], SIGNALS[victim])
    said = process.communicate(timeout=120)[0]
    if process.returncode == 0:
        return False
    assert process.returncode == 128 + SIGNALS[victim], said
    assert f"rank {victim} of 2 ended with signal {SIGNALS[victim].name}" in said
    return True


def state(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("framework, strategy", STRATEGIES)
def test_killed_ranks(framework: str, strategy: str, tmp_path: Path, require: Any) -> None:
    if strategy == "horovod":
        require(not horovod_problem(framework), "run `make horovod`")
    choice = (*OPTIONS, f"framework={framework}", f"strategy={strategy}")
    began = time.monotonic()
    whole = start(*choice, f"paths.results={tmp_path / 'whole'}")
    output = whole.communicate(timeout=300)[0]
    assert whole.returncode == 0, output
    took = time.monotonic() - began

    results, node, kills = tmp_path / "results", tmp_path / "node", 0
    process = start(*choice, f"paths.results={results}", f"checkpoint.local={node}")
    for number in range(KILLS):
        delay = 0.0 if number < 2 else random.uniform(0, took / KILLS)
        if not kill(process, results, number % 2, delay):
            break
        run = next(results.glob("digits/*"))
        kills += state(run)["state"] != "completed"  # a rank that dies after the end interrupts nothing
        assert not list(node.glob("*/*")), "what was complete on the node's disk is in the run folder"
        assert all(find_damage(path) is None for path in (run / "checkpoints").glob("[0-9]*"))
        process = start(f"resume={run}")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert kills > 0
    assert (state(run)["state"], state(run)["restarts"]) == ("completed", kills), output
    assert outcome(framework, run) == outcome(framework, next((tmp_path / "whole").glob("digits/*")))


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes may take 1 MB more than they have."""
    if not os.access(MEMORY / "cgroup.procs", os.W_OK):
        pytest.skip(f"needs root, and control groups of version 1 at {MEMORY}")
    group = MEMORY / f"test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("1000000")
    yield group
    group.rmdir()


@pytest.mark.slow
def test_a_rank_that_the_kernel_ends_for_its_memory(memory_group: Path, tmp_path: Path) -> None:
    results, node = tmp_path / "results", tmp_path / "node"
    process = start(*OPTIONS, "strategy=ddp", f"paths.results={results}", f"checkpoint.local={node}")
    wait_for_checkpoint(process, results)
    (memory_group / "cgroup.procs").write_text(str(ranks(results)[0]))
    said = process.communicate(timeout=120)[0]
    assert "oom_kill 1" in (memory_group / "memory.oom_control").read_text(), said
    assert "rank 0 of 2 ended with signal SIGKILL" in said
    run = next(results.glob("digits/*"))
    assert not list(node.glob("*/*")), "what was complete on the node's disk is in the run folder"
    again = start(f"resume={run}")
    output = again.communicate(timeout=300)[0]
    assert again.returncode == 0, output
    assert json.loads((run / "run.json").read_text())["state"] == "completed"

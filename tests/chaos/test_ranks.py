"""Several ranks, one of them killed: the others end, what was saved is published, the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint_files import damage_of
from src.checkpoint_store import CheckpointStore, Saved
from src.horovod_build import horovod_problem
from src.rundir import ROOT

OPTIONS = (
    "model=mlp",
    "model.dropout=0.3",
    "data.batch_size=64",
    "trainer.devices=2",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=6",
    "checkpoint.every_n_steps=3",
    "monitor.tensorboard=false",
    "monitor.progress=none",
)
STRATEGIES = [
    ("lightning", "ddp"),
    ("keras", "multiworker_mirrored"),
    ("lightning", "horovod"),
    ("keras", "horovod"),
]

Command = Callable[..., Any]


def weights(framework: str, saved: Saved) -> str:
    """In a process of its own: the two frameworks need not meet in this one."""
    code = (
        "import sys; sys.path[:0] = [{!r}, {!r}]; from pathlib import Path; from trainees import Framework\n"
    )
    code += "from src.checkpoint_files import load_manifest\n"
    code += "print(Framework({!r}).weights(load_manifest(Path({!r}))))"
    script = code.format(str(ROOT), str(Path(__file__).parent), framework, str(saved.path))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def newest(run: Path) -> Saved | None:
    return CheckpointStore(run / "checkpoints", "max", 2).newest_good()


def start(results: Path, *choice: str) -> subprocess.Popen[str]:
    arguments = [*OPTIONS, *choice, f"paths.results={results}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def ranks(parent: int) -> list[int]:
    """Process ids of the ranks that `src/train.py` has started, rank 0 first."""
    listed = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in listed]


def kill_one(results: Path, choice: tuple[str, ...], victim: int, node: Path) -> Path:
    """Start a run and kill one of its ranks after the first checkpoint; returns the run folder."""
    process = start(results, *choice, f"checkpoint.local={node}")
    end = time.monotonic() + 200
    while not list(results.glob("*/*/checkpoints/newest")):
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.05)
    os.kill(ranks(process.pid)[victim], signal.SIGKILL)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + signal.SIGKILL, said
    assert f"rank {victim} of 2 ended with signal SIGKILL" in said
    run = next(results.glob("digits/*"))
    assert not list(node.glob("*/*/[0-9]*")), "what was complete on the node's disk is in the run folder"
    return run


@pytest.mark.slow
@pytest.mark.parametrize("framework, strategy", STRATEGIES)
def test_a_killed_rank(framework: str, strategy: str, tmp_path: Path, train: Command, require: Any) -> None:
    if strategy == "horovod":
        require(
            not horovod_problem("torch" if framework == "lightning" else "tensorflow"), "run `make horovod`"
        )
    choice = (f"framework={framework}", f"strategy={strategy}")
    whole = start(tmp_path / "whole", *choice)
    output = whole.communicate(timeout=300)[0]
    assert whole.returncode == 0, output
    expected = newest(next((tmp_path / "whole").glob("digits/*")))
    for victim in (0, 1):
        run = kill_one(tmp_path / str(victim), choice, victim, tmp_path / "node")
        left = newest(run)
        assert left is not None and left.step > 0
        assert all(damage_of(path) is None for path in (run / "checkpoints").glob("[0-9]*"))
        done = train(f"resume={run}")
        assert done.returncode == 0, done.stdout + done.stderr
        info = json.loads((run / "run.json").read_text())
        assert (info["state"], info["restarts"]) == ("completed", 1)
        ended = newest(run)
        assert ended and expected and ended.step == expected.step
        assert weights(framework, ended) == weights(framework, expected)

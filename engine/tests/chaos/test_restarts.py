"""A rank dies repeatedly in one run here: same weights, no process left, constant memory.

CHAOS_KILLS=30 sets the number of kills. The short form kills each rank once. A rank kills only itself.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testbed.namespaces import is_running
from tools.testing.processes import run_python
from train_anywhere.distributed.packages import framework_problem
from train_anywhere.files import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.new_process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forks on Linux only"),
]

KILLS = int(os.environ.get("CHAOS_KILLS", "2"))
FIRST, BETWEEN = 13, 7
"""The step at which the first kill happens, and the steps between two."""

MARK = """
import os, pathlib, re, time
folder = pathlib.Path(__file__).parent
kills = {kills}

def memory(pid):
    return int(re.search(r"VmRSS:\\s+(\\d+)", pathlib.Path(f"/proc/{{pid}}/status").read_text())[1])

def begin():
    if rank() == 0 and kills:
        server = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1])
        with open(folder / "parents", "a") as file:
            print(server, memory(server), os.getppid(), memory(os.getppid()), file=file)

def done(step):
    count = len(list(folder.glob("killed-*")))
    if count < kills and step == {first} + {between} * count and rank() == count % 2:
        newest = lambda: max(int(one.read_text()) for one in folder.glob("*/2*/checkpoints/newest"))
        while newest() < step - 6:  # a failure without progress would end the run
            time.sleep(0.01)
        (folder / f"killed-{{count}}").touch()
        os.kill(os.getpid(), 9)

def rank():
    return int(os.environ["RANK"])
"""

OF = {
    "lightning": "import lightning\nclass Mark(lightning.Callback):\n    def on_fit_start(self, *_):\n        begin()\n"
    "    def on_train_batch_end(self, trainer, *_):\n        done(trainer.global_step)\n",
    "keras": "import keras\nclass Mark(keras.callbacks.Callback):\n    def on_train_begin(self, *_):\n        begin()\n"
    "    def on_train_batch_end(self, *_):\n        done(int(self.model.optimizer.iterations.numpy()))\n",
}


def train(folder: Path, framework: str, strategy: str, kills: int) -> tuple[list[str], str]:
    """The checksums of the weights of both ranks, and the output."""
    folder.mkdir()
    text = MARK.format(kills=kills, first=FIRST, between=BETWEEN) + OF[framework]
    (folder / "marks.py").write_text(text)
    words = [
        f"framework={framework}", f"strategy={strategy}", "trainer.devices=2", "trainer.accelerator=cpu", "model=mlp",
        f"trainer.max_steps={FIRST + BETWEEN * (KILLS + 1)}", "trainer.max_epochs=1000", "checkpoint.every_n_steps=3",
        "monitor.ranks=true", "monitor.progress=none", "monitor.tensorboard=false", f"cluster.retries={kills}",
        "+callbacks.mark._target_=marks.Mark", f"paths.results={folder}",
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = run_python(str(ROOT / "src" / "train.py"), *words, env=environ, timeout=60 + 60 * (1 + kills))
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return sorted(set(re.findall(r"weights (\w{16})", said))), said


@pytest.mark.parametrize(
    ("framework", "strategy"), [("lightning", "ddp"), ("keras", "multiworker_mirrored")], ids=lambda one: one
)
def test_a_run_whose_ranks_die_again_and_again(tmp_path: Path, framework: str, strategy: str) -> None:
    if problem := framework_problem(framework):
        pytest.skip(problem)
    weights, said = train(tmp_path / "killed", framework, strategy, KILLS)
    assert said.count("again: ") == KILLS and "new interpreters" not in said, said
    assert weights == train(tmp_path / "whole", framework, strategy, 0)[0] and len(weights) == 1
    (run,) = (tmp_path / "killed").glob("*/2*/run.json")
    attempts = json.loads(run.read_text())["attempts"]
    assert len(attempts) == KILLS + 1 and all("SIGKILL" in one["reason"] for one in attempts[:-1])
    assert all(one["restart"]["stop"] < 10 for one in attempts[:-1])
    rows = [
        [int(word) for word in line.split()]
        for line in (tmp_path / "killed" / "parents").read_text().splitlines()
    ]
    servers, supervisors = {row[0] for row in rows}, {row[2] for row in rows}
    assert len(rows) == KILLS + 1 and len(servers) == len(supervisors) == 1
    for at in (1, 3):  # KiB
        assert rows[-1][at] < 1.03 * rows[1][at] + 3000, rows
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout.split()
    assert left == [] and not any(is_running(pid) for pid in servers | supervisors)

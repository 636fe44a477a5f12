"""Measure how long a run on this machine takes from the failure of a rank to its next new step, in cold starts.

    python engine/benchmarks/recovery.py [--strategy ddp multiworker_mirrored] [--failure killed raises] [--kills 1] [--new]

Each row is one run with `cluster.retries`: its first start is the cold one, then a rank fails after step 25, and the ranks resume from
the checkpoint of step 20. Both are measured in the same run, because the load of the machine changes. The parts are those of the report:
detect (from the last step to the first exit), stop (until all ranks have ended), start (until the first batch), first step.
With --new the ranks are new interpreters instead of forks.
The last line is a JSON object.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAIL_AT, EVERY = 25, 10
"""The step after which a rank fails, and the steps between two checkpoints."""

CALLBACK = """
import os, time, resource
from pathlib import Path
FOLDER = Path({folder!r})
def mark(step):
    used = resource.getrusage(resource.RUSAGE_SELF)
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    line = f"{{step}} {{time.time()}} {{used.ru_utime + used.ru_stime:.2f}} {{rank}} {{os.getpid()}}\\n"
    with open(FOLDER / f"steps-{{rank}}", "a") as file:
        file.write(line)
    if step == {at} and rank == "1" and not (FOLDER / "raised").exists() and {raises}:
        (FOLDER / "raised").write_text(str(time.time()))
        raise ValueError("this rank fails")
    time.sleep({pause})
"""
OF = {
    "lightning": "import lightning.pytorch as pl\nclass Mark(pl.Callback):\n"
    "    def on_train_batch_end(self, trainer, *_):\n        mark(trainer.global_step)\n",
    "keras": "import keras\nclass Mark(keras.callbacks.Callback):\n    step = 0\n"
    "    def on_train_batch_end(self, *_, **__):\n        mark(int(self.model.optimizer.iterations.numpy()))\n",
}


def main() -> None:
    """Run the measurements, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", nargs="+", default=["ddp", "multiworker_mirrored"])
    parser.add_argument("--failure", nargs="+", default=["killed", "raises"])
    parser.add_argument("--framework", choices=OF, help="for horovod; default: lightning")
    parser.add_argument("--kills", type=int, default=1, help="how often a rank is killed in a run")
    parser.add_argument("--new", action="store_true", help="ranks are new interpreters")
    parsed = parser.parse_args()
    rows = []
    for strategy in parsed.strategy:
        for failure in parsed.failure:
            rows.append(measure(strategy, failure, parsed.framework, parsed.kills, parsed.new))
            print(describe(rows[-1]), flush=True)
    print(json.dumps({f"{row['strategy']} {row['failure']}": row for row in rows}))


NO_FORKS = "import os, sys\nif 'fork_main' in str(sys.orig_argv):\n    os._exit(1)\n"
"""A sitecustomize.py that ends the process from which ranks are forked."""


def measure(strategy: str, failure: str, framework: str | None, kills: int, new: bool) -> dict[str, Any]:
    """Train with two ranks, one of which fails, and return the seconds of each part."""
    of = framework or ("keras" if strategy in ("multiworker_mirrored",) else "lightning")
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        raises, pause = failure == "raises", 0.02
        text = CALLBACK.format(folder=name, at=FAIL_AT, raises=raises, pause=pause) + OF[of]
        (folder / "marks.py").write_text(text)
        if new:
            (folder / "sitecustomize.py").write_text(NO_FORKS)
        last = FAIL_AT + 40 * kills
        words = [
            f"framework={of}", f"strategy={strategy}", "trainer.devices=2", "trainer.accelerator=cpu", "model=mlp",
            f"trainer.max_steps={last}", "trainer.max_epochs=1000", f"checkpoint.every_n_steps={EVERY}",
            f"cluster.retries={kills}", "+callbacks.mark._target_=marks.Mark", f"paths.results={name}/results",
            "monitor.progress=plain",
        ]  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": name}
        began = time.time()
        with (folder / "log").open("w") as log:
            command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            failed = fail_ranks(process, folder, failure, kills)
            code = process.wait(300)
        assert code == 0, (folder / "log").read_text()[-3000:]
        return describe_times(folder, began, failed, strategy, failure)


def fail_ranks(process: "subprocess.Popen[bytes]", folder: Path, failure: str, kills: int) -> list[float]:
    """Let rank 1 fail some times; return when."""
    failed = list[float]()
    while len(failed) < kills and process.poll() is None:
        at = FAIL_AT + 40 * len(failed)
        marks = read_marks(folder, 1)
        if failure == "raises" and (folder / "raised").exists():
            failed.append(float((folder / "raised").read_text()))
        elif failure != "raises" and marks and marks[-1][0] >= at and marks[-1][1] > (failed or [0])[-1]:
            with suppress(ProcessLookupError):
                os.kill(int(marks[-1][4]), signal.SIGKILL)
                failed.append(time.time())
        time.sleep(0.005)
    return failed


def read_marks(folder: Path, rank: int) -> list[tuple[float, ...]]:
    """Return step, time, CPU seconds, rank and process id of the steps of a rank."""
    with suppress(OSError):
        lines = (folder / f"steps-{rank}").read_text().splitlines()
        return [tuple(map(float, line.split())) for line in lines if len(line.split()) == 5]
    return []


def describe_times(
    folder: Path, began: float, failed: list[float], strategy: str, failure: str
) -> dict[str, Any]:
    """Return a row: cold start, recovery in seconds and cold starts, its parts, and CPU seconds of a rank to its first step."""
    marks = read_marks(folder, 0)
    cold = marks[0][1] - began
    (run,) = (folder / "results").glob("*/2*")
    attempts = json.loads((run / "run.json").read_text())["attempts"]
    log = (folder / "log").read_text()
    recovered = []
    for at in failed:
        before = max(mark[0] for mark in marks if mark[1] <= at + 0.5)
        again = [m for m in marks if m[1] > at + 0.5 and m[4] not in {x[4] for x in marks if x[1] <= at}]
        new = next(m for m in again if m[0] > before)
        recovered.append((new[1] - at, again[0][2]))
    spent = attempts[1]["seconds"]
    parts = {
        **attempts[0]["restart"],
        "start": spent["before"] + spent["start"],
        "first step": spent["first"],
    }
    return {
        "strategy": strategy, "failure": failure, "cold": round(cold, 1), "cold CPU": marks[0][2],
        "seconds": [round(one, 1) for one, _ in recovered], "CPU": [cpu for _, cpu in recovered],
        "ratio": round(sorted(one for one, _ in recovered)[len(recovered) // 2] / cold, 2),
        "parts": {name: round(seconds, 1) for name, seconds in parts.items()},
        "forks": "as new interpreters" not in log, "reason": attempts[0].get("reason"),
    }  # fmt: skip


def describe(row: dict[str, Any]) -> str:
    """Return a line of the table."""
    parts = ", ".join(f"{name} {seconds}" for name, seconds in row["parts"].items())
    return (
        f"| {row['strategy']} | {row['failure']} | {row['ratio']} | {row['cold']} s | {row['seconds'][0]} s | {parts} "
        f"| {row['cold CPU']} / {row['CPU'][0]} s |"
    )


if __name__ == "__main__":
    main()

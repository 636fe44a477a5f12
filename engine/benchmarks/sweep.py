"""Measure the time of a further member of a sweep on this machine, relative to Hydra's basic launcher.

    python engine/benchmarks/sweep.py [--rounds 3] [--members 8] [--framework lightning]

This project runs each member in a separate process. Hydra's basic launcher runs all members in one process, so they share
globals. Both train the same single step with the same configurations. The time of a further member is the time of all
members minus that of one, divided by the number of further members. The last line is a JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "engine"))

from benchmarks.rounds import take_turns  # noqa: E402
from train_anywhere.distributed.packages import framework_problem  # noqa: E402

BASIC = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
import hydra
from train_anywhere.config.command.compose import install_choice_loader
from train_anywhere.config.load import to_plain_tree
from train_anywhere.launch.local_run import start
from train_anywhere.training.preflight import CHECKS

@hydra.main(version_base="1.3", config_path={str(ROOT / "configs")!r}, config_name="train")
def train(config):
    assert start(to_plain_tree(config), [], CHECKS) == 0

install_choice_loader()
train()
"""
STEP = (
    "model=mlp",
    "trainer.max_steps=1",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "monitor.progress=none",
)


def main() -> None:
    """Run the rounds, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--members", type=int, default=8)
    frameworks = [f for f in ("lightning", "keras") if not framework_problem(f)]
    parser.add_argument("--framework", nargs="+", default=frameworks)
    parsed = parser.parse_args()
    found = {f: measure(f, parsed.rounds, parsed.members) for f in parsed.framework}
    for framework, row in found.items():
        print(
            f"{framework}: a further member takes {row['seconds']:.2f} s, {row['ratio']:.2f} times that of the basic launcher"
        )
    print(json.dumps(found))


def measure(framework: str, rounds: int, members: int) -> dict[str, float]:
    """Return the seconds of a further member, and their ratio to Hydra's basic launcher."""
    with tempfile.TemporaryDirectory(prefix="sweep-benchmark-") as folder:
        basic = Path(folder) / "basic.py"
        basic.write_text(BASIC)
        programs = {
            "ours": [str(ROOT / "src" / "train.py")],
            "basic": [
                str(basic),
                "hydra/launcher=basic",
                "hydra/sweeper=basic",
                f"hydra.sweep.dir={folder}/hydra",
            ],
        }
        names = [f"{way} {count}" for way in programs for count in (1, members)]

        def seconds(name: str) -> float:
            way, count = name.split()
            seeds = "seed=" + ",".join(map(str, range(1, int(count) + 1)))
            arguments = [seeds, f"framework={framework}", *STEP, f"paths.results={folder}/{way}", "-m"]
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *programs[way], *arguments], capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            return time.perf_counter() - start

        result = take_turns(names, rounds, seconds, unused=1)
        further = {
            way: [
                (result.seconds[f"{way} {members}"][n] - result.seconds[f"{way} 1"][n]) / (members - 1)
                for n in result.counted_rounds()
            ]
            for way in programs
        }
        if result.disturbed:
            print(result.describe_disturbed())
    ratios = [ours / theirs for ours, theirs in zip(further["ours"], further["basic"], strict=True)]
    return {
        "seconds": round(statistics.median(further["ours"]), 3),
        "ratio": round(statistics.median(ratios), 3),
    }


if __name__ == "__main__":
    main()

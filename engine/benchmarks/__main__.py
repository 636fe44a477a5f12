"""All benchmarks, one after the other; the last line is one JSON object with what each has found.

    python -m benchmarks            the figures of docs/performance.md: some 30 minutes on a quiet machine
    python -m benchmarks --quick    fewer rounds and smaller networks: below five minutes, for a look whether anything is far off

Ratios compare what ran side by side in this run, on this machine; rounds that other programs disturbed are told apart
(`rounds.py`), and so are whole suites before or after which the machine was slow. At the end comes what is promised beside
what was found (`goals.py`).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.goals import rows, table
from benchmarks.rounds import DISTURBED, fixed_work

FOLDER = Path(__file__).resolve().parent

SUITES: dict[str, tuple[list[str], list[str] | None]] = {
    "step": (["--rounds", "3"], ["--rounds", "1"]),
    "submit": ([], ["--rounds", "3"]),
    "start": ([], None),
    "sweep": ([], ["--rounds", "1", "--members", "3", "--framework", "lightning"]),
    "data": ([], ["--rounds", "1", "--only", "pictures", "digits"]),
    "checkpoint": ([], ["--rounds", "2", "--layers", "8"]),
    "sharded_checkpoint": (["--rounds", "2"], ["--rounds", "1", "--layers", "8"]),
    "sharded_memory": ([], None),
    "scale": ([], ["--rounds", "1"]),
    "collectives": ([], None),
}
"""Each with its words, and those with --quick; None: it is too long for that."""


def machine() -> dict[str, Any]:
    """What it all ran on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def run(name: str, words: list[str]) -> dict[str, Any]:
    """One suite, whose output is shown as it comes; its last line is JSON."""
    print(f"\n==== {name} {' '.join(words)}".rstrip(), flush=True)
    began, busy, work = time.monotonic(), os.getloadavg()[0], fixed_work()
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent)
    assert process.stdout
    last = ""
    for line in process.stdout:
        if last:
            print(last, flush=True)
        last = line.rstrip("\n")
    if process.wait():
        print(last)
        return {"exit_code": process.returncode}
    about = {"load_before": round(busy, 1), "seconds": round(time.monotonic() - began)}
    return {**about, "fixed_work_ms": round(1000 * max(work, fixed_work()), 2), "found": json.loads(last)}


def main() -> int:
    """Run them; 1 if one of them has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="below five minutes")
    parser.add_argument("--only", nargs="+", choices=[*SUITES], help="these alone")
    parsed = parser.parse_args()
    words = {name: quick if parsed.quick else full for name, (full, quick) in SUITES.items()}
    there = [
        name for name in SUITES if (FOLDER / f"{name}.py").exists()
    ]  # a project may keep one framework alone
    chosen = {name: words[name] for name in parsed.only or there}
    results = {name: run(name, found) for name, found in chosen.items() if found is not None}
    print(f"\n==== what is promised\n{table(rows(results))}")
    work = {name: result["fixed_work_ms"] for name, result in results.items() if "found" in result}
    if slow := [name for name, taken in work.items() if taken > DISTURBED * min(work.values())]:
        print(f"The machine was slow before or after {', '.join(slow)}: run them again (--only).")
    print(json.dumps({"machine": machine(), "goals": rows(results), **results}))
    return int(any("exit_code" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

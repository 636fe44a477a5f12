"""Run all benchmarks, one after the other; the last line is one JSON object with all results.

    python -m benchmarks            the numbers of docs/concepts/performance.md: about 30 minutes on a quiet machine
    python -m benchmarks --quick    fewer rounds and smaller networks: a rough check in less than five minutes

Ratios compare programs that took turns in this run, on this machine. Rounds that other programs disturbed are reported
(`rounds.py`), and so are suites before or after which the machine was slow. At the end, a table compares the results with
the goals (`goals.py`).
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

from benchmarks.goals import evaluate_goals, format_table
from benchmarks.rounds import DISTURBED, fixed_work

FOLDER = Path(__file__).resolve().parent

SUITES: dict[str, tuple[list[str], list[str] | None]] = {
    "step": (["--rounds", "3"], ["--rounds", "1"]),
    "submit": ([], ["--rounds", "3"]),
    "sweep": ([], ["--rounds", "1", "--members", "3", "--framework", "lightning"]),
    "data": ([], ["--rounds", "1", "--only", "pictures", "digits"]),
    "shards": ([], ["--rounds", "1", "--only", "arrays"]),
    "checkpoint": ([], ["--rounds", "2", "--layers", "8"]),
    "checkpoint --sharded": (["--rounds", "2"], ["--rounds", "1", "--layers", "8"]),
    "recovery": ([], None),
    "scale": ([], ["--rounds", "1"]),
    "collectives": ([], None),
}
"""Arguments of each suite, without and with --quick; None: the suite takes too long for --quick."""


def describe_machine() -> dict[str, Any]:
    """Return the CPU, cores and Python version of this machine, and the date."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def run_suite(name: str, arguments: list[str]) -> dict[str, Any]:
    """Run one suite and print its output as it appears; return the JSON object of its last line."""
    print(f"\n==== {name} {' '.join(arguments)}".rstrip(), flush=True)
    began, busy, work = time.monotonic(), os.getloadavg()[0], fixed_work()
    program, *options = name.split()
    command = [sys.executable, "-u", str(FOLDER / f"{program}.py"), *options, *arguments]
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
    """Run the suites; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less than five minutes")
    parser.add_argument("--only", nargs="+", choices=[*SUITES], help="run only these suites")
    parsed = parser.parse_args()
    arguments = {name: quick if parsed.quick else full for name, (full, quick) in SUITES.items()}
    present = [
        name for name in SUITES if (FOLDER / f"{name.split()[0]}.py").exists()
    ]  # a project may keep only one framework
    chosen = {name: arguments[name] for name in parsed.only or present}
    results = {name: run_suite(name, given) for name, given in chosen.items() if given is not None}
    goals = evaluate_goals(results)
    print(f"\n==== goals\n{format_table(goals)}")
    work = {name: result["fixed_work_ms"] for name, result in results.items() if "found" in result}
    if slow := [name for name, ms in work.items() if ms > DISTURBED * min(work.values())]:
        print(f"The machine was slow before or after {', '.join(slow)}: run these again with --only.")
    print(json.dumps({"machine": describe_machine(), "goals": goals, **results}))
    return int(any("exit_code" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

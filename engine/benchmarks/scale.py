"""Measure this project's bookkeeping at 10 to 10,000 nodes of 8 ranks: seconds, memory and bytes, without a cluster.

    python engine/benchmarks/scale.py [--rounds 3]

Each part is called like in the program, with simulated nodes, in a separate process. All sizes take turns; seconds are the
median. A factor of 10 from one column to the next is linear growth. The largest size is 9,408 nodes, as on Frontier. The
last line is one JSON object.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.rounds import take_turns  # noqa: E402

NODES = (10, 100, 1000, 9408)
RANKS = 8
"""Ranks per node."""

Part = Callable[[int, Path], int | None]
"""A function that runs a part once for a number of nodes, in an empty folder, and returns the bytes written or sent, if any."""


def submission(nodes: int, folder: Path) -> int | None:
    """Run a dry run, which composes and checks the configuration, and renders the batch script."""
    overrides = [
        "cluster=slurm",
        f"trainer.nodes={nodes}",
        f"trainer.devices={RANKS}",
        "dry_run=true",
        "cluster.local_disk=/nowhere",
    ]
    overrides += [f"data.batch_size={nodes * RANKS}", "data=synthetic", f"data.length={100 * nodes * RANKS}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *overrides, f"paths.results={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return len(done.stdout)


def host_lists(nodes: int, folder: Path) -> int | None:
    """Read the place of a rank and the hosts of all others from the variables of a job."""
    from train_anywhere.distributed.discover import discover

    place = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_ID": "0", "MASTER_PORT": "29500"}
    sizes = {"SLURM_STEP_NUM_TASKS": str(nodes * RANKS), "SLURM_STEP_NUM_NODES": str(nodes)}
    hosts = ",".join(f"n{number:05}:{RANKS}" for number in range(1, nodes + 1))
    topology = discover({**place, **sizes, "TRAIN_HOSTS": hosts, "MASTER_ADDR": "n00001"})
    assert len(topology.layout()) == nodes
    return None


def tf_config_workers(nodes: int, folder: Path) -> int | None:
    """Compute TF_CONFIG of one rank, which names all workers."""
    from train_anywhere.distributed.network.addresses import tf_config
    from train_anywhere.distributed.topology import Topology

    lists = {"hosts": tuple((f"n{number:05}", RANKS) for number in range(1, nodes + 1))}
    place = {"world_size": nodes * RANKS, "local_world_size": RANKS, "nodes": nodes}
    return len(tf_config(Topology(**place, coordinator_port=29500, **lists)))  # type: ignore[arg-type]


def sampler(nodes: int, folder: Path) -> int | None:
    """Compute the rows of 100 batches of one rank, with 100 rows per rank and epoch."""
    from train_anywhere.data.order.assignment import BatchOrder

    order = BatchOrder(nodes * RANKS, 1, rank=3, world_size=nodes * RANKS, train=True)
    for batch in range(100):
        order.rows(100 * nodes * RANKS, 0, batch)
    return None


def run_json(nodes: int, folder: Path) -> int | None:
    """Record the start of an attempt, like rank 0."""
    from train_anywhere.runs.folder import RunDir
    from train_anywhere.runs.recorder import RunRecorder

    run = RunDir(folder)
    run.update(state="submitted")
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": f"n[00001-{nodes:05}]"}
    RunRecorder(run).record_start(nodes * RANKS, environ, nodes * RANKS)
    return (folder / "run.json").stat().st_size


def heartbeats(nodes: int, folder: Path) -> int | None:
    """Check the ranks of all nodes from their files in a shared folder, like the first node; twice, one window apart."""
    from train_anywhere.features.hangs.hangs import find_hang
    from train_anywhere.features.hangs.watch import Stragglers
    from train_anywhere.files.atomic import dumps
    from train_anywhere.monitor.ranks import OtherNodes, RankStatus
    from train_anywhere.runs.folder import RunDir

    run, written = RunDir(folder), 0
    others, watch = OtherNodes(run, "n00000", 0.0), Stragglers()
    one = RankStatus(
        rank=0,
        world_size=nodes * RANKS,
        pid=1,
        started=0,
        stacks=0,
        section="step",
        place="forward",
        turn=9,
        batch=1,
        step=1,
        longest=1.0,
        own=0.0,
        data=0.0,
        trained=0,
        beats=10,
        host="",
        process="R",
        seconds=10.0,
        silent=1.0,
        clock=0.0,
    )
    run.monitor.mkdir()
    for number in range(2):
        for node in range(1, nodes):
            host = f"n{node:05}"
            ranks = [
                replace(
                    one,
                    rank=node * RANKS + n,
                    host=host,
                    clock=20.0 * number,
                    trained=10 * number,
                    own=number,
                )
                for n in range(RANKS)
            ]
            content = dumps({"host": host, "number": number + 1, "ranks": [asdict(r) for r in ranks]})
            (run.monitor / f"ranks-{host}.json").write_text(content)
            written += len(content) if number else 0
    start = time.perf_counter()
    found = others.read()
    assert len(found) == (nodes - 1) * RANKS
    watch.update(found)
    assert find_hang(found, 60.0) is None
    SECONDS.append(time.perf_counter() - start)
    return written


SECONDS: list[float] = []
"""Seconds that a part has measured itself, because its preparation does not count."""

PARTS: dict[str, Part] = {
    "submission": submission,
    "host list": host_lists,
    "TF_CONFIG": tf_config_workers,
    "sampler": sampler,
    "run.json": run_json,
    "heartbeats": heartbeats,
}


def measure_part(name: str, nodes: int) -> dict[str, float]:
    """Measure one part at one size in a separate process."""
    command = [sys.executable, __file__, "--one", name, str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_sizes(name: str, rounds: int) -> tuple[list[dict[str, float]], str]:
    """Measure one part at each size; return the rows, with median seconds, and a line about disturbed rounds."""
    rows: dict[str, dict[str, float]] = {}

    def measure(size: str) -> float:
        rows[size] = measure_part(name, int(size))
        return rows[size]["seconds"]

    found = take_turns([str(nodes) for nodes in NODES], rounds, measure)
    return [
        {**row, "seconds": round(found.median_seconds(size), 5)} for size, row in rows.items()
    ], found.describe_disturbed()


def measure_here(name: str, nodes: int) -> dict[str, Any]:
    """Measure one part at one size in this process."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        PARTS[name](2, Path(first))  # imports
        SECONDS.clear()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        written = PARTS[name](nodes, Path(second))
        seconds = SECONDS[-1] if SECONDS else time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(seconds, 5), "memory_mib": round(memory / 1024, 1), "bytes": written}


def main() -> None:
    """Print a table for each part and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        print(json.dumps(measure_here(parsed.one[0], int(parsed.one[1]))))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{'nodes (of 8 ranks)':<24}" + "".join(f"{nodes:>12,}" for nodes in NODES))
    results: dict[str, list[dict[str, float]]] = {}
    for name in PARTS:
        rows, disturbed = measure_sizes(name, parsed.rounds)
        results[name] = rows
        for unit, title in (("seconds", "s"), ("memory_mib", "MiB more"), ("bytes", "bytes")):
            if any(row[unit] for row in rows):
                print(f"{f'{name}, {title}':<24}" + "".join(f"{row[unit]:>12,}" for row in rows), flush=True)
        if disturbed:
            print(disturbed)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

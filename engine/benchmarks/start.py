"""Measure the start of a rank: file calls on the shared disk with and without `cluster.pack_env`, time, and imports.

    python engine/benchmarks/start.py [--rounds 3] [--framework lightning]

The shared disk has the project, the run folder, the environment, its Python, and the home. Two ranks are traced (strace)
from their first call to their first step. A call counts if it names a path below one of these folders. The times are
ratios, as medians over rounds in which the programs take turns. The last line is a JSON object.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "engine"))

from benchmarks.rounds import Rounds, take_turns  # noqa: E402
from train_anywhere.config.command.command_line import to_hydra_overrides  # noqa: E402
from train_anywhere.config.command.compose import compose  # noqa: E402
from train_anywhere.config.load import load  # noqa: E402
from train_anywhere.distributed.layout import local_layout  # noqa: E402
from train_anywhere.distributed.packages import framework_problem  # noqa: E402
from train_anywhere.features.pack_env import archive  # noqa: E402
from train_anywhere.launch.local_run import make_run  # noqa: E402
from train_anywhere.slurm.submission import snapshot  # noqa: E402

RANKS = 2
STEP = "/first-step-of-a-rank"
"""A path that a callback looks up at the start of the first step."""

MARKS = {
    "lightning": "import os, lightning.pytorch as pl\nclass Mark(pl.Callback):\n"
    f"    def on_train_batch_start(self, *_): os.path.exists('{STEP}')\n",
    "keras": "import os, keras\nclass Mark(keras.callbacks.Callback):\n"
    f"    def on_train_batch_begin(self, *_, **__): os.path.exists('{STEP}')\n",
}
IMPORTS = {
    "lightning": ("torch", "lightning.pytorch"),
    "keras": ("tensorflow", "keras"),
}
"""Modules that every rank must import."""


def main() -> None:
    """Run the measurements, and print tables and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--framework", nargs="+", default=[f for f in MARKS if not framework_problem(f)])
    parsed = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="start-benchmark-") as folder:
        shared, disk = Path(folder) / "shared", Path(folder) / "node's disk"
        disk.mkdir()
        packed = pack_project(shared, disk)
        for framework in parsed.framework:
            calls = {way: trace_calls(framework, shared, packed, way) for way in ("shared", "packed")}
            print(f"\n{framework}: file calls on the shared disk until the first step")
            for way, ranks in calls.items():
                for rank, counts in enumerate(ranks):
                    print(
                        f"  {way:8} rank {rank}  " + "  ".join(f"{n:,} {w}" for w, n in counts.most_common())
                    )
            times = time_runs(framework, shared, parsed.rounds)
            ratios = {name: times.ratio("run", name) for name in IMPORTS[framework]}
            print(
                "  time of a run of one step: "
                + ", ".join(f"{r} times `import {n}`" for n, r in ratios.items())
                + f". {times.describe_disturbed()}"
            )
            table = imported_packages(framework, shared)
            for name, (modules, seconds) in table.items():
                print(f"  {name:24}{modules:>6} modules{1000 * seconds:>8.0f} ms")
            found[framework] = {
                "file_calls": calls,
                "ratio_to_import": {name: round(ratio.median, 3) for name, ratio in ratios.items()},
                "modules": table,
            }
    print(json.dumps(found))


def pack_project(shared: Path, disk: Path) -> dict[str, str]:
    """Pack the environment, and unpack it on the "node's disk"; return the variables of a job that uses it."""
    (shared / "results").mkdir(parents=True)
    code = shared / "code"
    snapshot.take_snapshot(ROOT, code, shared / "results")
    key = archive.pack_code(code)
    sys.path.insert(0, str(shared))  # the folder of the callbacks, so that a configuration may name them
    packed = archive.pack(archive.read(Path(sys.prefix)), shared / "results")
    top = disk / f"shared-{os.getuid()}"
    variables = {
        "TRAIN_PACKED": str(top / f"environment-{packed.parent.name}"),
        "TRAIN_PACKED_CODE": str(top / f"code-{key}"),
        "TRAIN_PYTHON": sys.executable,
    }
    command = [
        sys.executable,
        "-m",
        "train_anywhere.features.pack_env.unpack",
        str(packed),
        str(code / archive.CODE),
    ]
    subprocess.run(command, cwd=code, env={**os.environ, **variables}, check=True)
    return variables


def new_run(framework: str, shared: Path, *overrides: str) -> Path:
    """Make a run folder like a submission, and return it."""
    always = (f"framework={framework}", f"paths.results={shared}/results", "model=mlp")
    config = load(compose(to_hydra_overrides([*always, *overrides])))
    return make_run(config, [], local_layout(config)).path


def trace_calls(framework: str, shared: Path, packed: Mapping[str, str], way: str) -> list[Counter[str]]:
    """Return the file calls of each rank. A first run is not counted: it leaves compiled files, like an earlier job."""
    (shared / f"{framework}_mark.py").write_text(MARKS[framework])
    counts: list[Counter[str]] = []
    for tracing in (False, True):
        mark = f"callbacks.mark._target_={framework}_mark.Mark"
        run = new_run(framework, shared, f"trainer.devices={RANKS}", "trainer.max_steps=2", mark)
        python = (
            shared / "code" / "engine" / "train_anywhere" / "slurm" / "packed" / "python"
            if way == "packed"
            else sys.executable
        )
        command = [str(python), "-u", str(shared / "code" / "src" / "train.py"), "--run", str(run)]
        traces = [shared / f"trace-{rank}" for rank in range(RANKS)]
        processes = [
            subprocess.Popen(
                [*(strace_arguments(trace) if tracing else []), *command],
                cwd=shared / "code",
                env={
                    **job_environment(rank, run),
                    **packed,
                    "PYTHONPATH": str(callback_folder(framework, shared, packed, way)),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for rank, trace in enumerate(traces)
        ]
        errors = [p.communicate()[1] for p in processes]
        if any(p.returncode for p in processes):
            raise SystemExit(b"".join(errors).decode())
        counts = [count_calls(trace, shared) for trace in traces] if tracing else []
    return counts


def callback_folder(framework: str, shared: Path, packed: Mapping[str, str], way: str) -> Path:
    """Return the folder of the callback: next to the code, so that finding it does not add file calls."""
    if way == "shared":
        return shared
    folder = Path(packed["TRAIN_PACKED_CODE"])
    shutil.copy2(shared / f"{framework}_mark.py", folder)
    return folder


def job_environment(rank: int, run: Path) -> dict[str, str]:
    """Return the variables of a rank on this machine; like in a job, PATH has no folders of this shell."""
    port = 20_000 + int(run.name.rpartition("-")[2], 16) % 10_000
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    return {
        **os.environ,
        **{name: str(value) for name, value in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }


def strace_arguments(trace: Path) -> list[str]:
    """Return the arguments to put before a command, to write its file calls to a file."""
    return ["strace", "-f", "-qq", "-y", "-e", "trace=%file", "-o", str(trace)]


def count_calls(trace: Path, shared: Path) -> Counter[str]:
    """Return the number of calls until the first step that name a path on the shared disk, by kind of folder."""
    folders: dict[str, list[str | Path]] = {
        "run folder": [shared / "results"],
        "code": [shared, ROOT],
        "environment": [sys.prefix, os.path.realpath(sys.prefix)],
        "Python": [sys.base_prefix, os.path.realpath(sys.base_prefix)],
        "home": [Path.home()],
    }
    counts = Counter[str]()
    for line in trace.read_text(errors="replace").splitlines():
        if STEP in line:
            return counts
        path = re.search(r'"((?:[^"\\]|\\.)*)"', line)
        if (
            path is None or not path[1] or "resumed>" in line
        ):  # without a file name, or the second line of a call
            continue
        folder = re.search(r"\((?:AT_FDCWD|\d+)<([^>]*)>", line)
        whole = Path(folder[1] if folder else "/", path[1])
        what = (name for name, tops in folders.items() if any(whole.is_relative_to(top) for top in tops))
        counts[next(what, "elsewhere")] += 1
    raise SystemExit(f"{trace} has no first step")


def time_runs(framework: str, shared: Path, rounds: int) -> Rounds:
    """Time a whole run of one step, and each import."""
    names = (*IMPORTS[framework], "run")
    return take_turns(
        names, rounds, lambda name: time_command(make_command(name, framework, shared)), unused=1
    )


def make_command(name: str, framework: str, shared: Path) -> list[str]:
    """Return the command of an import, or of a run in a new run folder."""
    if name != "run":
        return [sys.executable, "-c", f"import {name}"]
    run = new_run(framework, shared, "trainer.fast_dev_run=true")
    return [sys.executable, "-u", str(shared / "code" / "src" / "train.py"), "--run", str(run)]


def time_command(command: list[str]) -> float:
    """Run a command, and return its seconds."""
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def imported_packages(framework: str, shared: Path, number: int = 10) -> dict[str, tuple[int, float]]:
    """Return the packages that a rank imports, the slowest first: number of modules, and seconds without nested imports."""
    command = make_command("run", framework, shared)
    command[1:1] = ["-X", "importtime"]
    errors = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    modules, seconds = Counter[str](), defaultdict[str, float](float)
    for own, name in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", errors, re.M):
        package = name.partition(".")[0]
        modules[package] += 1
        seconds[package] += int(own) / 1e6
    found = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {name: (modules[name], round(taken, 3)) for name, taken in found[:number]}


if __name__ == "__main__":
    main()

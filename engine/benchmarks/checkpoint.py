"""Measure what one checkpoint costs the training: this project compared with other methods, in one run, as ratios.

    python engine/benchmarks/checkpoint.py

    stall    time that the training thread waits
    whole    delay of the training, including steps that the background work slows down
    memory   additional peak memory of the process and its children, compared with the same number of rounds with a state
             of one number; in sizes of the state. Training's own tensors come and go, so it is accurate to 0.01

Stall and whole are relative to a synchronous `torch.save` to the shared disk, a folder that is limited to 300 MB/s
(throttle.c). One thread trains. The time in which it could run but has no core does not count. So the background work has
its own core, and other programs on the machine change little. Sharing memory, its bandwidth, caches and Python's lock with
the background work does count.

A machine's speed drifts by more than the cost of a checkpoint. So each stretch of training with a checkpoint is compared
with the mean of the stretches before and after it, which have the same number of steps and no checkpoint. The result is
the median of these differences. A stretch is long enough for all background work. The measured checkpoint is a usual one,
not the first: each method has loaded its code and saved twice before. The last line is one JSON object.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

RATE = 300e6
"""Bytes per second that can be written to the shared disk."""

WIDTH, LAYERS, ROWS = 1024, 44, 128
"""A network of 46 million weights; with AdamW's two moments the state has 554 MB."""

Done = Callable[[], bool]
"""A function that returns whether the checkpoint is on the shared disk."""


class Training:
    """A network, its optimizer, and its training step."""

    def __init__(self, layers: int = LAYERS) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        # fused: its steps allocate nothing large
        self.optimizer = torch.optim.AdamW(self.network.parameters(), fused=True)
        self.rows = torch.randn(ROWS, WIDTH)
        self.steps = 0

    def step(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad(set_to_none=False)
        self.network(self.rows).square().mean().backward()
        self.optimizer.step()
        self.steps += 1

    def seconds(self, count: int) -> float:
        """Train `count` steps, and return the seconds that they take."""
        start = read_clock()
        for _ in range(count):
            self.step()
        return read_clock() - start

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def size(self) -> int:
        """Return the size of the state in bytes."""
        tensors = [*self.network.state_dict().values()]
        tensors += [value for moments in self.optimizer.state.values() for value in moments.values()]
        return sum(tensor.nbytes for tensor in tensors)


# --- the methods: each is created once, and called with the state at each checkpoint ----------------------------------


class Synchronous:
    """`torch.save` to the shared disk."""

    def __init__(self, local: Path, shared: Path) -> None:
        self.shared = shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Save the state, and return when it is written."""
        import torch

        torch.save(state, self.shared / "model.ckpt")
        return lambda: True


class Ours:
    """This project: reused buffers, the node's disk, then the shared disk; with checksums, read back, and renamed."""

    def __init__(self, local: Path, shared: Path) -> None:
        from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
        from train_anywhere.checkpoints.disk.staging import Staging
        from train_anywhere.checkpoints.store import CheckpointStore
        from train_anywhere.training.lightning.checkpoint.buffers import Buffers

        staging = Staging(local / "bench" / "stage")
        self.checkpointer = AsyncCheckpointer(CheckpointStore(shared, "max", keep_last=1), staging)
        self.buffers = Buffers()

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Save the state like `train_anywhere.training.lightning.checkpoint.state.StateWriter`."""
        from train_anywhere.checkpoints.disk.manifest import CheckpointInfo

        self.checkpointer.wait()
        self.buffers.fill(state)
        info = CheckpointInfo(step, 0, 0, {}, None, "lightning")
        self.checkpointer.save(lambda folder: self.buffers.write(folder / "model.ckpt"), info)
        return lambda: self.checkpointer.newest is not None and self.checkpointer.newest.step == step


class LightningAsync:
    """Lightning's AsyncCheckpointIO, straight to the shared disk."""

    def __init__(self, local: Path, shared: Path) -> None:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.plugin, self.shared = AsyncCheckpointIO(TorchCheckpointIO()), shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Start the save. The plugin has one thread, so the next task is done after the checkpoint is written."""
        self.plugin.save_checkpoint(state, self.shared / "model.ckpt")
        return self.plugin._executor.submit(lambda: None).done


class TorchDistributed:
    """`torch.distributed.checkpoint.async_save`, straight to the shared disk."""

    def __init__(self, local: Path, shared: Path) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.shared = shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Start the save with the default stager, like the tutorial of PyTorch."""
        from torch.distributed.checkpoint import async_save

        future: Any = async_save(state, checkpoint_id=str(self.shared / "dcp"), **self.options())
        return getattr(future, "upload_completion", future).done

    def options(self) -> dict[str, Any]:
        """Return arguments of `async_save`; by default, a thread saves."""
        return {}


class TorchDistributedProcess(TorchDistributed):
    """The same with a separate process that saves, so that it does not share Python's lock with the training."""

    def options(self) -> dict[str, Any]:
        """Return arguments of `async_save`; the first save starts the process, which needs the process group."""
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


class GuideRsync:
    """The method of cluster guides: `torch.save` to the node's disk, then rsync in the background."""

    def __init__(self, local: Path, shared: Path) -> None:
        self.local, self.shared = local, shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Save the state, and start the copy, which is not checked."""
        import torch

        torch.save(state, self.local / "model.ckpt")
        copy = subprocess.Popen(["rsync", "--whole-file", str(self.local / "model.ckpt"), f"{self.shared}/"])
        return lambda: copy.poll() is not None


METHODS: dict[str, Callable[[Path, Path], Any]] = {
    "torch.save": Synchronous,
    "ours": Ours,
    "AsyncCheckpointIO": LightningAsync,
    "dcp.async_save": TorchDistributed,
    "dcp.async_save process": TorchDistributedProcess,
    "save, then rsync": GuideRsync,
}


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(name: str, local: Path, shared: Path, rounds: int, layers: int) -> dict[str, Any]:
    """Train with one method in this process; return stall and whole cost in seconds for each round, and memory."""
    training = Training(layers)
    method = METHODS[name](local, shared)
    training.seconds(3)
    one = {"one": training.rows[:1, :1].clone()}
    before = max(train_through_checkpoint(training, method, 10, one)[-1] for _ in range(rounds))
    count = max(train_through_checkpoint(training, method, 1)[2] for _ in range(2)) + 1
    rows, seconds_before = [], training.seconds(count)
    for number in range(rounds):
        stall, seconds, steps, peak = train_through_checkpoint(training, method, count)
        seconds_after = training.seconds(count)
        whole = seconds - (seconds_before + seconds_after) / 2 * steps / count
        seconds_before = seconds_after
        rows.append((stall, whole, peak))
        report(
            f"{name}: {number + 1} of {rounds}: stall {stall:.3f} s, whole {whole:.3f} s of {seconds:.1f} s"
        )
    stalls, wholes, peaks = zip(*rows, strict=True)
    memory = (max(peaks) - before) / training.size()
    return {"stall": stalls, "whole": wholes, "memory": memory, "size": training.size()}


def train_through_checkpoint(
    training: Training, method: Any, count: int, state: dict[str, Any] | None = None
) -> tuple[float, float, int, int]:
    """Save a checkpoint, and train at least `count` steps, until it is written.

    Returns:
        Seconds of stall, seconds in all, number of steps, and peak memory in bytes.
    """
    reset_peak_memory()
    start, first = read_clock(), training.steps
    done = method.save(state or training.state(), training.steps)
    stall = read_clock() - start
    while training.steps - first < count or not done():
        training.step()
    return stall, read_clock() - start, training.steps - first, peak_memory()


def read_clock() -> float:
    """Return the time in seconds, without the time in which the main thread waited for a core (the run queue of proc(5))."""
    _, waited, _ = Path("/proc/self/schedstat").read_text().split()
    return time.perf_counter() - int(waited) / 1e9


def report(text: str) -> None:
    """Print a line about the progress."""
    print(text, file=sys.stderr, flush=True)


def reset_peak_memory() -> None:
    """Reset VmHWM of this process and its children."""
    for process in ("self", *children()):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return VmHWM of this process and its children in bytes; shared memory counts once."""
    return memory("self")["VmHWM"] + sum(
        found["VmHWM"] - found["RssShmem"] for found in map(memory, children())
    )


def children() -> list[str]:
    """Return the process ids of the children of this process."""
    lists = Path("/proc/self/task").glob("*/children")
    return " ".join(path.read_text() for path in lists).split()


def memory(process: str) -> dict[str, int]:
    """Return the sizes in /proc/PID/status, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    rows = (line.split() for line in lines if line.startswith(("VmHWM", "RssShmem")))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in rows}


def measure_in_child(name: str, rounds: int, layers: int, where: Path, throttle: Path) -> dict[str, Any]:
    """Call `measure` in a child process whose writes to the shared disk are slowed down."""
    local, shared = where / "local", where / "shared"
    for folder in (local, shared):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(throttle),
        "THROTTLE_FOLDER": str(shared),
        "THROTTLE_RATE": str(RATE),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",  # like torchrun: the process of dcp.async_save connects there
    }
    command = [sys.executable, __file__, "--method", name, "--rounds", str(rounds), "--layers", str(layers)]
    command += ["--folder", str(where)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(rounds: int, layers: int, where: Path) -> dict[str, float]:
    """Run every method, print the table, and return the ratios."""
    throttle = where / "throttle.so"
    source = Path(__file__).with_name("throttle.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(throttle), str(source), "-ldl"], check=True)
    names = [name for name in METHODS if "rsync" not in name or shutil.which("rsync")]
    found = {name: measure_in_child(name, rounds, layers, where, throttle) for name in names}
    unit = statistics.median(found["torch.save"]["stall"])
    print(
        f"\nstate of {found['ours']['size'] / 1e6:.0f} MB; 1 = {unit:.2f} s, torch.save at {RATE / 1e6:.0f} MB/s"
    )
    print(f"{'':<24}{'stall':>8}{'whole':>8}{'memory':>8}  spread of the stall")
    ratios: dict[str, float] = {}
    for name, row in found.items():
        values = {
            "stall": statistics.median(row["stall"]) / unit,
            "whole": statistics.median(row["whole"]) / unit,
            "memory": round(row["memory"], 2),
        }
        spread = f"{min(row['stall']) / unit:.3f} to {max(row['stall']) / unit:.3f}"
        print(f"{name:<24}" + "".join(f"{value:8.3f}" for value in values.values()) + f"  ({spread})")
        ratios |= {f"checkpoint {column}, {name}": round(value, 4) for column, value in values.items()}
    return ratios


def main() -> None:
    """Print the table, and a JSON object of ratios as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--layers", type=int, default=LAYERS, help="each adds 12.6 MB to the state (%(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for both simulated disks; default: memory, else TMPDIR"
    )
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.method:
        print(
            json.dumps(
                measure(
                    parsed.method,
                    parsed.folder / "local",
                    parsed.folder / "shared",
                    parsed.rounds,
                    parsed.layers,
                )
            )
        )
        sys.stdout.flush()
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(0)  # a method may have left threads
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=parsed.folder or memory) as folder:
        print(json.dumps(compare(parsed.rounds, parsed.layers, Path(folder))))


if __name__ == "__main__":
    main()

"""What one checkpoint costs a training: ours against others', in one run, as ratios.

    python engine/benchmarks/checkpoint.py

    stall    how long the training thread waits
    whole    how much later the training arrives, all steps included that are slowed while the background works
    memory   how much more host memory the process and its children take at their peak than in as many rounds with a
             state of one number, in sizes of the state; training's own tensors come and go between, so it is good to 0.01

Stall and whole cost are relative to a synchronous `torch.save` to the shared disk, a folder that takes 300 MB/s
(throttle.c). One thread trains. The time in which it could run but has no core is not counted, so the background has a
core to itself, and other programs on the machine spoil little; what it costs to share memory, its bandwidth, caches and
Python's lock with the background is counted.

A machine's speed drifts by more than a checkpoint costs. So each stretch of training with a checkpoint lies between two
of as many steps without one, and is compared with their mean; the median of these differences counts. The stretch is
long enough for all that the background does. What counts is a run's usual checkpoint, not its first: each method has
loaded its code and saved twice before. The last line is one JSON object.
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
"""Bytes per second that the shared disk takes."""

WIDTH, LAYERS, ROWS = 1024, 44, 128
"""A network of 46 million weights: with AdamW's two moments a state of 554 MB."""

Done = Callable[[], bool]
"""Whether the checkpoint is on the shared disk."""


class Training:
    """A network, its optimizer, and the step."""

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
        """One optimizer step."""
        self.optimizer.zero_grad(set_to_none=False)
        self.network(self.rows).square().mean().backward()
        self.optimizer.step()
        self.steps += 1

    def seconds(self, count: int) -> float:
        """Seconds for that number of steps."""
        began = clock()
        for _ in range(count):
            self.step()
        return clock() - began

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def size(self) -> int:
        """Bytes of the state."""
        tensors = [*self.network.state_dict().values()]
        tensors += [value for moments in self.optimizer.state.values() for value in moments.values()]
        return sum(tensor.nbytes for tensor in tensors)


# --- the methods: each is made once, and called with the state at each checkpoint ----------------------------------


class Synchronous:
    """`torch.save` to the shared disk."""

    def __init__(self, local: Path, shared: Path) -> None:
        self.shared = shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """Write and return when it is written."""
        import torch

        torch.save(state, self.shared / "model.ckpt")
        return lambda: True


class Ours:
    """Kept buffers, the node's disk, then the shared one; checksummed, read back, renamed."""

    def __init__(self, local: Path, shared: Path) -> None:
        from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
        from train_anywhere.checkpoints.disk.event_files import EventFileSync
        from train_anywhere.checkpoints.disk.staging import Staging
        from train_anywhere.checkpoints.store import CheckpointStore
        from train_anywhere.training.lightning.checkpoint.buffers import Buffers

        staging = Staging(local / "bench" / "stage")
        events = EventFileSync(staging, shared / "tensorboard")
        self.checkpointer = AsyncCheckpointer(CheckpointStore(shared, "max", keep_last=1), staging, events)
        self.buffers = Buffers()

    def save(self, state: dict[str, Any], step: int) -> Done:
        """As `train_anywhere.training.lightning.checkpoint.state.StateWriter` does."""
        from train_anywhere.checkpoints.info import CheckpointInfo

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
        """The plugin has one thread: what is handed to it next is done when the checkpoint is."""
        self.plugin.save_checkpoint(state, self.shared / "model.ckpt")
        return self.plugin._executor.submit(lambda: None).done


class TorchDistributed:
    """`torch.distributed.checkpoint.async_save`, straight to the shared disk."""

    def __init__(self, local: Path, shared: Path) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.shared = shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """With its default stager, as its tutorial does."""
        from torch.distributed.checkpoint import async_save

        future: Any = async_save(state, checkpoint_id=str(self.shared / "dcp"), **self.options())
        return getattr(future, "upload_completion", future).done

    def options(self) -> dict[str, Any]:
        """Return arguments of `async_save`; by default a thread saves."""
        return {}


class TorchDistributedProcess(TorchDistributed):
    """The same, but a process of its own saves, so that training does not share Python's lock with it."""

    def options(self) -> dict[str, Any]:
        """The first save starts the process, which needs the process group."""
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


class GuideRsync:
    """As cluster guides advise: `torch.save` to the node's disk, then rsync in the background."""

    def __init__(self, local: Path, shared: Path) -> None:
        self.local, self.shared = local, shared

    def save(self, state: dict[str, Any], step: int) -> Done:
        """The copy is not checked."""
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
    """Train with one method in this process: seconds of stall and of whole cost for each round, and memory."""
    training = Training(layers)
    method = METHODS[name](local, shared)
    training.seconds(3)
    one = {"one": training.rows[:1, :1].clone()}
    before = max(with_checkpoint(training, method, 10, one)[-1] for _ in range(rounds))
    count = max(with_checkpoint(training, method, 1)[2] for _ in range(2)) + 1
    rows, before_it = [], training.seconds(count)
    for number in range(rounds):
        stall, seconds, steps, peak = with_checkpoint(training, method, count)
        after_it = training.seconds(count)
        whole = seconds - (before_it + after_it) / 2 * steps / count
        before_it = after_it
        rows.append((stall, whole, peak))
        say(f"{name}: {number + 1} of {rounds}: stall {stall:.3f} s, whole {whole:.3f} s of {seconds:.1f} s")
    stalls, wholes, peaks = zip(*rows, strict=True)
    memory = (max(peaks) - before) / training.size()
    return {"stall": stalls, "whole": wholes, "memory": memory, "size": training.size()}


def with_checkpoint(
    training: Training, method: Any, count: int, state: dict[str, Any] | None = None
) -> tuple[float, float, int, int]:
    """A checkpoint and at least `count` steps, until it is written: stall, seconds, steps, peak of memory."""
    forget_peak()
    began, first = clock(), training.steps
    done = method.save(state or training.state(), training.steps)
    stall = clock() - began
    while training.steps - first < count or not done():
        training.step()
    return stall, clock() - began, training.steps - first, peak_of_memory()


def clock() -> float:
    """Seconds, without those in which the main thread waited for a core (proc(5) calls it the run queue)."""
    _, waited, _ = Path("/proc/self/schedstat").read_text().split()
    return time.perf_counter() - int(waited) / 1e9


def say(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr, flush=True)


def forget_peak() -> None:
    """VmHWM of this process and its children counts from here."""
    for process in ("self", *children()):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def peak_of_memory() -> int:
    """Return VmHWM of this process and its children, in bytes; memory that they share counts once."""
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


def child(name: str, rounds: int, layers: int, where: Path, throttle: Path) -> dict[str, Any]:
    """`measure` in a process of its own, whose writes to the shared disk are slowed down."""
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
        "MASTER_ADDR": "127.0.0.1",  # as torchrun sets it: the process of dcp.async_save meets there
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
    found = {name: child(name, rounds, layers, where, throttle) for name in names}
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
    """Print the table, and as the last line one JSON object of ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=LAYERS, help="each is a state of 12.6 MB (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="where the two disks are played; default: memory, else TMPDIR"
    )
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.method:
        print(
            json.dumps(
                measure(
                    asked.method, asked.folder / "local", asked.folder / "shared", asked.rounds, asked.layers
                )
            )
        )
        sys.stdout.flush()
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(0)  # whatever threads a method has left
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=asked.folder or memory) as folder:
        print(json.dumps(compare(asked.rounds, asked.layers, Path(folder))))


if __name__ == "__main__":
    main()

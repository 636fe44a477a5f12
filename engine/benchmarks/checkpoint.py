"""Measure what one checkpoint costs the training: this project compared with other methods, in one run, as ratios.

    python engine/benchmarks/checkpoint.py [--sharded]

Sharded: two ranks, the layers split over them as with strategy=fsdp, each with half of the disk's rate; compared with
`torch.distributed.checkpoint`. The worse of the two ranks counts. They share the cores of this machine with their
background work, so stall and memory are more reliable than whole.

    stall    time that the training thread waits
    whole    delay of the training, including steps that the background work slows down
    memory   additional peak memory of the process and its children, compared with the same number of rounds with a state
             of one number; in sizes of the state. Training's own tensors come and go, so it is accurate to 0.01

Stall and whole are relative to a synchronous save to the shared disk, a folder that is limited to 300 MB/s
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
from functools import partial
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

    def everywhere(self, done: bool) -> bool:
        """Return whether `done` is true on all ranks, so that they train the same number of steps."""
        return done

    def size(self) -> int:
        """Return the size of the state in bytes."""
        tensors = [*self.network.state_dict().values()]
        tensors += [value for moments in self.optimizer.state.values() for value in moments.values()]
        return sum(tensor.nbytes for tensor in tensors)


class Sharded(Training):
    """The same, its layers split over the ranks one by one."""

    def __init__(self, layers: int) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        super().__init__(layers)
        for layer in self.network:
            fully_shard(layer)
        fully_shard(self.network)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), fused=True)

    def state(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint."""
        from torch.distributed.checkpoint import state_dict as dcp

        optimizer = dcp.get_optimizer_state_dict(self.network, self.optimizer)
        return {"state_dict": dcp.get_model_state_dict(self.network), "optimizer_states": [optimizer]}

    def everywhere(self, done: bool) -> bool:
        """See `Training`."""
        import torch
        from torch import distributed

        flag = torch.tensor(int(done))
        distributed.all_reduce(flag, distributed.ReduceOp.MIN)
        return bool(flag.item())

    def size(self) -> int:
        """Return the size of this rank's part in bytes."""
        weights = sum(p.to_local().nbytes for p in self.network.parameters())  # type: ignore[attr-defined]
        return 3 * int(weights)


# --- the methods: each is opened once, and what it returns is called with the state at each checkpoint ----------------

Save = Callable[[dict[str, Any], int], Done]
"""A function that saves a state at a step."""


def save_synchronously(rank: int, local: Path, shared: Path) -> Save:
    """`torch.save` to the shared disk."""
    import torch

    def save(state: dict[str, Any], step: int) -> Done:
        torch.save(state, shared / "model.ckpt")
        return lambda: True

    return save


def save_parts_synchronously(rank: int, local: Path, shared: Path) -> Save:
    """`dcp.save` to the shared disk."""
    from torch.distributed import checkpoint as dcp

    def save(state: dict[str, Any], step: int) -> Done:
        dcp.save(state, checkpoint_id=shared / "dcp")
        return lambda: True

    return save


def ours(rank: int, local: Path, shared: Path) -> Save:
    """This project: reused buffers, the node's disk, then the shared disk; with checksums, read back, and renamed."""
    from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
    from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
    from train_anywhere.checkpoints.store import CheckpointStore, Retention, Staging
    from train_anywhere.training.lightning.checkpoint.contents import Buffers

    checkpointer = AsyncCheckpointer(
        CheckpointStore(shared, Retention("max", keep_last=1)), Staging(local / "bench" / "stage")
    )
    buffers = Buffers()

    def save(state: dict[str, Any], step: int) -> Done:
        checkpointer.wait()
        buffers.fill(state)
        info = CheckpointInfo(step, 0, 0, {}, None, "lightning")
        checkpointer.save(lambda folder: buffers.write(folder / "model.ckpt"), info)
        return lambda: checkpointer.newest is not None and checkpointer.newest.step == step

    return save


def ours_in_parts(rank: int, local: Path, shared: Path) -> Save:
    """This project with strategy=fsdp: the same on each rank; rank 0 checks and publishes."""
    from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
    from train_anywhere.checkpoints.recovery import open_checkpointer
    from train_anywhere.files.removal import OwnedFolder
    from train_anywhere.runs.folder import RunDir
    from train_anywhere.training.lightning.checkpoint.contents import Shards
    from train_anywhere.training.lightning.checkpoint.state import StateWriter

    class Rule:
        mode, keep_last, keep_every_n_epochs, local = "max", 1, None, None

    run = RunDir(shared)
    checkpointer = open_checkpointer(Rule, run, sharded=True) if rank == 0 else None  # type: ignore[arg-type]
    if checkpointer:
        checkpointer.__enter__()
    place = OwnedFolder(local, ("bench", f"stage.rank-{rank}"), f"part of rank {rank}")
    writer = StateWriter(checkpointer, Shards(run.checkpoints, place), None)

    def save(state: dict[str, Any], step: int) -> Done:
        writer.wait()
        writer.save_checkpoint(state, None, CheckpointInfo(step, 0, 0, {}, None, "lightning"))
        return lambda: written(step)

    def written(step: int) -> bool:
        writer.check()
        return checkpointer is None or (checkpointer.newest is not None and checkpointer.newest.step == step)

    return save


def lightning_async(rank: int, local: Path, shared: Path) -> Save:
    """Lightning's AsyncCheckpointIO, straight to the shared disk. It has one thread, so the next task is done after the checkpoint."""
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    plugin = AsyncCheckpointIO(TorchCheckpointIO())

    def save(state: dict[str, Any], step: int) -> Done:
        plugin.save_checkpoint(state, shared / "model.ckpt")
        return plugin._executor.submit(lambda: None).done

    return save


def torch_async(kind: str, rank: int, local: Path, shared: Path) -> Save:
    """`dcp.async_save` straight to the shared disk, as in its tutorial; by a thread, or a process that has its own lock of Python."""
    from torch import distributed
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    options = {"async_checkpointer_type": AsyncCheckpointerType[kind]}
    group = distributed.new_group(backend="gloo")

    def save(state: dict[str, Any], step: int) -> Done:
        future: Any = dcp.async_save(state, checkpoint_id=shared / "dcp", process_group=group, **options)
        done: Done = getattr(future, "upload_completion", future).done
        return done

    return save


def save_then_rsync(rank: int, local: Path, shared: Path) -> Save:
    """The method of cluster guides: `torch.save` to the node's disk, then rsync in the background, which nothing checks."""
    import torch

    def save(state: dict[str, Any], step: int) -> Done:
        torch.save(state, local / "model.ckpt")
        copy = subprocess.Popen(["rsync", "--whole-file", str(local / "model.ckpt"), f"{shared}/"])
        return lambda: copy.poll() is not None

    return save


TORCH_ASYNC: dict[str, Callable[[int, Path, Path], Save]] = {
    "dcp.async_save": partial(torch_async, "THREAD"),
    "dcp.async_save process": partial(torch_async, "PROCESS"),
}
METHODS: dict[bool, dict[str, Callable[[int, Path, Path], Save]]] = {
    False: {
        "torch.save": save_synchronously,
        "ours": ours,
        "AsyncCheckpointIO": lightning_async,
        **TORCH_ASYNC,
        "save, then rsync": save_then_rsync,
    },
    True: {"dcp.save": save_parts_synchronously, "ours": ours_in_parts, **TORCH_ASYNC},
}
"""Methods for a whole state, and for the parts of a sharded one; the first is the unit."""


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(parsed: argparse.Namespace) -> dict[str, Any]:
    """Train with one method as one rank; return stall and whole cost in seconds for each round, and memory."""
    training = Sharded(parsed.layers) if parsed.sharded else Training(parsed.layers)
    save = METHODS[parsed.sharded][parsed.method](
        parsed.rank, parsed.folder / "local", parsed.folder / "shared"
    )
    training.seconds(3)
    one = training.rows[:1, :1].clone()
    small = {"state_dict": {"one": one}, "optimizer_states": [{}]} if parsed.sharded else {"one": one}
    before = max(train_through_checkpoint(training, save, 10, dict(small))[-1] for _ in range(parsed.rounds))
    count = max(train_through_checkpoint(training, save, 1)[2] for _ in range(2)) + 1
    rows, seconds_before = [], training.seconds(count)
    for number in range(parsed.rounds):
        stall, seconds, steps, peak = train_through_checkpoint(training, save, count)
        seconds_after = training.seconds(count)
        whole = seconds - (seconds_before + seconds_after) / 2 * steps / count
        seconds_before = seconds_after
        rows.append((stall, whole, peak))
        text = f"{number + 1} of {parsed.rounds}: stall {stall:.3f} s, whole {whole:.3f} s of {seconds:.1f} s"
        print(f"{parsed.method}, rank {parsed.rank}: {text}", file=sys.stderr, flush=True)
    stalls, wholes, peaks = zip(*rows, strict=True)
    memory = (max(peaks) - before) / training.size()
    return {"stall": stalls, "whole": wholes, "memory": memory, "size": training.size()}


def train_through_checkpoint(
    training: Training, save: Save, count: int, state: dict[str, Any] | None = None
) -> tuple[float, float, int, int]:
    """Save a checkpoint, and train at least `count` steps, until it is written.

    Returns:
        Seconds of stall, seconds in all, number of steps, and peak memory in bytes.
    """
    for process in ("self", *children()):
        Path(f"/proc/{process}/clear_refs").write_text("5")  # resets VmHWM
    start, first = read_clock(), training.steps
    done = save(state or training.state(), training.steps)
    stall = read_clock() - start
    while not training.everywhere(done() and training.steps - first >= count):
        training.step()
    return stall, read_clock() - start, training.steps - first, peak_memory()


def read_clock() -> float:
    """Return the time in seconds, without the time in which the main thread waited for a core (the run queue of proc(5))."""
    _, waited, _ = Path("/proc/self/schedstat").read_text().split()
    return time.perf_counter() - int(waited) / 1e9


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


def run_rank(parsed: argparse.Namespace) -> None:
    """Measure as one rank, print the JSON line, and exit."""
    from torch import distributed

    distributed.init_process_group("gloo", rank=parsed.rank, world_size=2 if parsed.sharded else 1)
    print(json.dumps(measure(parsed)), flush=True)
    distributed.barrier()
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(0)  # a method may have left threads


def run_ranks(name: str, parsed: argparse.Namespace, folder: Path, throttle: Path) -> list[dict[str, Any]]:
    """Measure in one child process per rank, whose writes to the shared disk are slowed down."""
    from train_anywhere.launch.processes import free_port

    ranks = 2 if parsed.sharded else 1
    for disk in (folder / "local", folder / "shared"):
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(throttle),
        "THROTTLE_FOLDER": str(folder / "shared"),
        "THROTTLE_RATE": str(RATE / ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",  # like torchrun: the processes of dcp.async_save connect there
        "MASTER_PORT": str(free_port()),
        "PYTHONWARNINGS": "ignore",  # dcp warns about a checkpoint that it overwrites
    }
    command = [sys.executable, __file__, "--method", name, "--folder", str(folder)]
    command += ["--rounds", str(parsed.rounds), "--layers", str(parsed.layers)]
    command += ["--sharded"] * parsed.sharded
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{name} failed.")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def compare(parsed: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run every method, print the table, and return the ratios. Of several ranks the worst counts."""
    throttle = folder / "throttle.so"
    source = Path(__file__).with_name("throttle.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(throttle), str(source), "-ldl"], check=True)
    names = [name for name in METHODS[parsed.sharded] if "rsync" not in name or shutil.which("rsync")]
    found = {name: run_ranks(name, parsed, folder, throttle) for name in names}
    first = names[0]
    unit = max(statistics.median(rank["stall"]) for rank in found[first])
    size = sum(rank["size"] for rank in found["ours"])
    print(f"\nstate of {size / 1e6:.0f} MB; 1 = {unit:.2f} s, {first} at {RATE / 1e6:.0f} MB/s")
    print(f"{'':<24}{'stall':>8}{'whole':>8}{'memory':>8}  spread of the stall")
    ratios: dict[str, float] = {}
    for name, ranks in found.items():
        values = {
            column: max(statistics.median(rank[column]) for rank in ranks) / unit
            for column in ("stall", "whole")
        }
        values["memory"] = max(rank["memory"] for rank in ranks)
        stalls = [max(stall) / unit for stall in zip(*(rank["stall"] for rank in ranks), strict=True)]
        cells = "".join(f"{value:8.3f}" for value in values.values())
        print(f"{name:<24}{cells}  ({min(stalls):.3f} to {max(stalls):.3f})")
        ratios |= {f"checkpoint {column}, {name}": round(value, 4) for column, value in values.items()}
    return ratios


def main() -> None:
    """Print the table, and a JSON object of ratios as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sharded", action="store_true", help="two ranks with a part of the state each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--layers", type=int, default=LAYERS, help="each adds 12.6 MB to the state (%(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for both simulated disks; default: memory, else TMPDIR"
    )
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.method:
        run_rank(parsed)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=parsed.folder or memory) as folder:
        print(json.dumps(compare(parsed, Path(folder))))


if __name__ == "__main__":
    main()

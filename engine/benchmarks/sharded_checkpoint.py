"""Measure what one checkpoint of a sharded training costs: this project compared with PyTorch, on two ranks, as ratios.

    python engine/benchmarks/sharded_checkpoint.py

Columns and disks are those of checkpoint.py. Values are relative to a synchronous `dcp.save` to the shared disk; each rank
has half of its rate. Two ranks and their background work share the cores of this machine, so stall and memory are more
reliable than whole. The worse of the two ranks counts. The last line is one JSON object.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.checkpoint import LAYERS, RATE, Training, peak_memory, read_clock, report, reset_peak_memory  # noqa: E402

RANKS = 2


class Sharded(Training):
    """The network of checkpoint.py, its layers split over the ranks one by one."""

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

    def size(self) -> int:
        """Return the size of this rank's part in bytes."""
        weights = sum(p.to_local().nbytes for p in self.network.parameters())  # type: ignore[attr-defined]
        return 3 * int(weights)


def all_ranks(done: bool) -> bool:
    """Return whether `done` is true on all ranks, so that they train the same number of steps."""
    import torch
    from torch import distributed

    flag = torch.tensor(int(done))
    distributed.all_reduce(flag, distributed.ReduceOp.MIN)
    return bool(flag.item())


class Synchronous:
    """`dcp.save` to the shared disk."""

    def __init__(self, rank: int, local: Path, shared: Path) -> None:
        self.shared = shared

    def save(self, state: dict[str, Any], step: int) -> Callable[[], bool]:
        """Save the state, and return when it is written."""
        from torch.distributed import checkpoint as dcp

        dcp.save(state, checkpoint_id=self.shared / "dcp")
        return lambda: True


class TorchAsync:
    """`dcp.async_save` straight to the shared disk, with the default stager and a separate process group, like its tutorial."""

    def __init__(self, rank: int, local: Path, shared: Path) -> None:
        from torch import distributed

        self.shared, self.group = shared, distributed.new_group(backend="gloo")

    def save(self, state: dict[str, Any], step: int) -> Callable[[], bool]:
        """Start the save, and return when the state is copied."""
        from torch.distributed import checkpoint as dcp

        future: Any = dcp.async_save(
            state, checkpoint_id=self.shared / "dcp", process_group=self.group, **self.options()
        )
        done: Callable[[], bool] = getattr(future, "upload_completion", future).done
        return done

    def options(self) -> dict[str, Any]:
        """Return arguments of `async_save`; by default, a thread saves."""
        return {}


class TorchAsyncProcess(TorchAsync):
    """The same with a separate process that saves, so that it does not share Python's lock with the training."""

    def options(self) -> dict[str, Any]:
        """Return arguments of `async_save`; the first save starts the process on each rank."""
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


class Ours:
    """This project with strategy=fsdp: reused buffers, the node's disk, then the shared disk; rank 0 checks and publishes it."""

    def __init__(self, rank: int, local: Path, shared: Path) -> None:
        from train_anywhere.checkpoints.recovery import open_checkpointer
        from train_anywhere.files.removal import OwnedFolder
        from train_anywhere.runs.folder import RunDir
        from train_anywhere.training.lightning.checkpoint.shards import Shards
        from train_anywhere.training.lightning.checkpoint.state import StateWriter

        class Rule:
            mode, keep_last, keep_every_n_epochs, local = "max", 1, None, None

        run = RunDir(shared)
        checkpointer = open_checkpointer(Rule, run, sharded=True) if rank == 0 else None  # type: ignore[arg-type]
        if checkpointer:
            checkpointer.__enter__()
        place = OwnedFolder(local, ("bench", f"stage.rank-{rank}"), f"part of rank {rank}")
        self.writer = StateWriter(checkpointer, Shards(run.checkpoints, place), None)

    def save(self, state: dict[str, Any], step: int) -> Callable[[], bool]:
        """Save the state like the callback of a run."""
        from train_anywhere.checkpoints.disk.manifest import CheckpointInfo

        self.writer.wait()
        self.writer.save_checkpoint(state, None, CheckpointInfo(step, 0, 0, {}, None, "lightning"))
        return lambda: self._written(step)

    def _written(self, step: int) -> bool:
        self.writer.check()
        checkpointer = self.writer.checkpointer
        return checkpointer is None or (checkpointer.newest is not None and checkpointer.newest.step == step)


METHODS: dict[str, Callable[[int, Path, Path], Any]] = {
    "dcp.save": Synchronous,
    "ours": Ours,
    "dcp.async_save": TorchAsync,
    "dcp.async_save process": TorchAsyncProcess,
}


def measure(name: str, rank: int, local: Path, shared: Path, rounds: int, layers: int) -> dict[str, Any]:
    """Train with one method as one rank; return stall and whole cost in seconds for each round, and memory."""
    training = Sharded(layers)
    method = METHODS[name](rank, local, shared)
    training.seconds(3)
    one = {"state_dict": {"one": training.rows[:1, :1].clone()}, "optimizer_states": [{}]}
    before = max(train_through_checkpoint(training, method, 10, dict(one))[-1] for _ in range(rounds))
    count = max(train_through_checkpoint(training, method, 1)[2] for _ in range(2)) + 1
    rows, seconds_before = [], training.seconds(count)
    for number in range(rounds):
        stall, seconds, steps, peak = train_through_checkpoint(training, method, count)
        seconds_after = training.seconds(count)
        whole = seconds - (seconds_before + seconds_after) / 2 * steps / count
        seconds_before = seconds_after
        rows.append((stall, whole, peak))
        if rank == 0:
            report(
                f"{name}: {number + 1} of {rounds}: stall {stall:.3f} s, whole {whole:.3f} s of {seconds:.1f} s"
            )
    stalls, wholes, peaks = zip(*rows, strict=True)
    size = training.size()
    return {"stall": stalls, "whole": wholes, "memory": (max(peaks) - before) / size, "size": size}


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
    while not all_ranks(done() and training.steps - first >= count):
        training.step()
    return stall, read_clock() - start, training.steps - first, peak_memory()


def run_ranks(
    name: str, parsed: argparse.Namespace, folder: Path, throttle: Path, port: int
) -> list[dict[str, Any]]:
    """Call `measure` in two child processes whose writes to the shared disk are slowed down."""
    for disk in (folder / "local", folder / "shared"):
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(throttle),
        "THROTTLE_FOLDER": str(folder / "shared"),
        "THROTTLE_RATE": str(RATE / RANKS),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",  # like torchrun: the processes of dcp.async_save connect there
        "PYTHONWARNINGS": "ignore",  # dcp warns about a checkpoint that it overwrites
        "PORT": str(port),
    }
    command = [sys.executable, __file__, "--method", name, "--folder", str(folder)]
    command += ["--rounds", str(parsed.rounds), "--layers", str(parsed.layers)]
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    outputs = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"{name} failed.")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def run_rank(parsed: argparse.Namespace) -> None:
    """Measure as one of the two ranks, print the JSON line, and exit."""
    from torch import distributed

    address = f"tcp://127.0.0.1:{os.environ['PORT']}"
    distributed.init_process_group("gloo", init_method=address, rank=parsed.rank, world_size=RANKS)
    local, shared = parsed.folder / "local", parsed.folder / "shared"
    print(json.dumps(measure(parsed.method, parsed.rank, local, shared, parsed.rounds, parsed.layers)))
    sys.stdout.flush()
    distributed.barrier()
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(0)  # a method may have left threads


def compare(parsed: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run every method, print the table, and return the ratios."""
    from train_anywhere.launch.processes import free_port

    throttle = folder / "throttle.so"
    source = Path(__file__).with_name("throttle.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(throttle), str(source), "-ldl"], check=True)
    found = {name: run_ranks(name, parsed, folder, throttle, free_port()) for name in METHODS}
    unit = max(statistics.median(rank["stall"]) for rank in found["dcp.save"])
    size = sum(rank["size"] for rank in found["ours"])
    print(
        f"\nstate of {size / 1e6:.0f} MB on {RANKS} ranks; 1 = {unit:.2f} s, dcp.save at {RATE / 1e6:.0f} MB/s"
    )
    print(f"{'':<24}{'stall':>8}{'whole':>8}{'memory':>8}  spread of the stall")
    ratios: dict[str, float] = {}
    for name, rows in found.items():
        values = {
            column: max(statistics.median(row[column]) for row in rows) / unit
            for column in ("stall", "whole")
        } | {"memory": max(row["memory"] for row in rows)}
        stalls = [max(stall) / unit for stall in zip(*(row["stall"] for row in rows), strict=True)]
        spread = f"{min(stalls):.3f} to {max(stalls):.3f}"
        print(f"{name:<24}" + "".join(f"{value:8.3f}" for value in values.values()) + f"  ({spread})")
        ratios |= {f"sharded checkpoint {column}, {name}": round(v, 4) for column, v in values.items()}
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
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.method:
        run_rank(parsed)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=parsed.folder or memory) as folder:
        print(json.dumps(compare(parsed, Path(folder))))


if __name__ == "__main__":
    main()

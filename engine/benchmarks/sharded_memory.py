"""Measure the memory of a rank that trains a language model: with the whole model (ddp), and with a part of it (fsdp).

    python engine/benchmarks/sharded_memory.py [--ranks 2 4]

Real ranks on this machine train three steps of short rows on the CPU, with AdamW in float32. The numbers are bytes of
resident memory of rank 0 (VmRSS and VmHWM of proc(5)):

    built      peak until training starts, while the model is built and split
    step       peak within the third step
    between    after the third step: weights, gradients, and the state of the optimizer

The memory of the same ranks with a tiny model (Python, PyTorch, the rows) is subtracted. The unit is the size of the
model's weights in float32. The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MALLOC_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Return freed memory to the system at once: by default the C library keeps much of it, so resident memory would mean little."""

VOCABULARY, LENGTH, ROWS = 50257, 32, 8
"""GPT-2's vocabulary; tokens per row; rows per batch over all ranks."""

MODEL, STEPS = "gpt_125m", 3
COLUMNS = ("built", "step", "between")
MODULE = "benchmarks.sharded_memory"
OVERRIDES = (
    "task=language_model",
    f"data._target_={MODULE}.open_tokens",
    f"data.batch_size={ROWS}",
    f"trainer.max_steps={STEPS}",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
    "trainer.accelerator=cpu",
    "checkpoint.local=null",
    f"callbacks.memory._target_={MODULE}.Memory",
    "monitor.progress=none",
    "monitor.tensorboard=false",
)
TINY_MODEL = ("model.layers=1", "model.heads=2", "model.kv_heads=2", "model.width=4")
STRATEGIES = ("ddp", "fsdp")


class Tokens:
    """Rows of random tokens."""

    def __len__(self) -> int:
        return ROWS * STEPS

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Return rows of one document each."""
        shape = (len(indices), LENGTH + 1)
        tokens = np.random.default_rng(indices[0]).integers(0, VOCABULARY, shape)
        return {"tokens": tokens, "documents": np.zeros(shape, np.int64), "bytes": self.sizes(indices)}

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of targets of each row."""
        return np.full(len(indices), LENGTH, np.float64)


def open_tokens() -> Any:
    """Return the data of the benchmark."""
    from train_anywhere.data.dataset import Splits

    return Splits(Tokens(), Tokens(), None, {"vocabulary": VOCABULARY, "length": LENGTH})  # type: ignore[arg-type]


class Memory(pl.Callback):
    """Callback that writes rank 0's memory at three moments of its run to the file MEMORY_FILE."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the peak: the model is split, and the optimizer has no state yet."""
        self.seen["built"] = status("VmHWM")

    def on_train_batch_start(self, trainer: pl.Trainer, *arguments: Any) -> None:
        """Reset the peak."""
        Path("/proc/self/clear_refs").write_text("5")

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        """Record the memory; the last step overwrites the earlier ones."""
        self.seen |= {"step": status("VmHWM"), "between": status("VmRSS")}
        if trainer.global_rank == 0:
            Path(os.environ["MEMORY_FILE"]).write_text(json.dumps(self.seen))


def status(name: str) -> int:
    """Return a row of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def train_and_measure(ranks: int, strategy: str, *overrides: str) -> dict[str, int]:
    """Train with this number of ranks; return the memory of rank 0 in bytes."""
    with tempfile.TemporaryDirectory(prefix="sharded-memory-") as folder:
        file = Path(folder) / "memory.json"
        choice = [f"strategy={strategy}", f"trainer.devices={ranks}", f"paths.results={folder}", *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MEMORY_FILE": str(file), **MALLOC_OPTIONS}
        command = [sys.executable, str(ROOT / "src" / "train.py"), *OVERRIDES, *choice]
        subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, int] = json.loads(file.read_text())
        return found


def compare(ranks: list[int]) -> dict[str, float]:
    """Print the table; return memory in sizes of the model."""
    from src.models.gpt import parameter_count

    size = parameter_count(VOCABULARY, layers=12, heads=12, kv_heads=12, width=768) * 4
    ratios: dict[str, float] = {}
    for count in ranks:
        for name in STRATEGIES:
            baseline = train_and_measure(count, name, "model=gpt", *TINY_MODEL)
            whole = train_and_measure(count, name, f"model={MODEL}")
            above = {column: whole[column] - baseline[column] for column in COLUMNS}
            ratios |= {f"memory {column}, {name} on {count}": above[column] / size for column in COLUMNS}
            print(f"{name} on {count}: {whole}, with a tiny model {baseline}", file=sys.stderr, flush=True)
    print(f"\n{MODEL}, 1 = {size / 1e9:.3f} GB, its weights; in brackets: relative to ddp")
    print(f"{'':<20}" + "".join(f"{column:>16}" for column in COLUMNS))
    for count in ranks:
        for name in STRATEGIES:
            cells = [ratios[f"memory {column}, {name} on {count}"] for column in COLUMNS]
            ddp = [ratios[f"memory {column}, ddp on {count}"] for column in COLUMNS]
            line = "".join(f"{c:8.2f} ({c / d:.2f})".rjust(16) for c, d in zip(cells, ddp, strict=True))
            print(f"{f'{name}, {count} ranks':<20}{line}")
    return {name: round(value, 3) for name, value in ratios.items()}


def main() -> None:
    """Print the table, and a JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parsed = parser.parse_args()
    sys.path[:1] = [str(ROOT), str(ROOT / "engine")]
    print(json.dumps(compare(parsed.ranks)))


if __name__ == "__main__":
    main()

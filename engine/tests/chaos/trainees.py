"""Trainings for the laboratory: two frameworks, and one that only writes checkpoints."""

import hashlib
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, SavedCheckpoint
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir, create

SMALL = (
    "name=chaos", "model=mlp", "model.hidden=[16]", "model.dropout=0.3", "data.batch_size=64", "trainer.accelerator=cpu",
    "trainer.devices=1", "trainer.max_epochs=4", "trainer.limit_train_batches=6", "trainer.limit_val_batches=2",
    "trainer.limit_test_batches=1", "trainer.early_stopping.patience=50", "checkpoint.every_n_steps=2", "monitor.progress=none",
)  # fmt: skip
"""24 steps, a checkpoint after every second one, everything that a checkpoint has to hold."""


class Framework:
    """A run of `src/train.py` with one framework."""

    def __init__(self, name: str, *overrides: str) -> None:
        self.name, self.overrides = name, overrides

    def prepare(self) -> None:
        """Import in the laboratory what takes long, so that its children need not."""
        import importlib

        importlib.import_module(f"train_anywhere.training.{self.name}.run")
        if self.name == "lightning":
            import torch

            torch.set_num_threads(1)  # a child of fork must not wait for threads that it has not got

    def start(self, results: Path, node: Path) -> RunDir:
        """A new run folder."""
        from train_anywhere.config.command.compose import compose
        from train_anywhere.config.load import load
        from train_anywhere.distributed.layout import local_layout
        from train_anywhere.launch.local_run import make_run

        folders = [f"checkpoint.local={node}", f"paths.results={results}"]
        config = load(compose([*SMALL, f"framework={self.name}", *folders, *self.overrides]))
        return make_run(config, [], local_layout(config))

    def train(self, run: RunDir) -> int:
        """Run one start of the run and return the exit code."""
        from train_anywhere.launch.rank import run_rank

        return run_rank(run)

    def weights(self, saved: SavedCheckpoint) -> str:
        """A digest of everything in a checkpoint that training depends on."""
        if self.name == "lightning":
            import torch

            state = torch.load(saved.path / "model.ckpt", weights_only=True)
            rest = {name: value for name, value in state.items() if name != "loops"}
            return digest([rest, self._shards(saved.path) if (saved.path / ".metadata").exists() else {}])
        import numpy as np

        files = [np.load(saved.path / name) for name in ("weights.npz", "optimizer.npz")]
        return digest([{name: file[name] for name in file.files} for file in files])

    def _shards(self, folder: Path) -> Any:
        """Weights and optimizer, which fsdp keeps in a file per rank."""
        import torch
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        with tempfile.TemporaryDirectory() as scratch:
            dcp_to_torch_save(folder, f"{scratch}/whole")
            return torch.load(f"{scratch}/whole", weights_only=False)

    def curves(self, run: RunDir) -> Any:
        """Return TensorBoard's steps, and the values that every attempt measures as a whole."""
        notf = "tensorboard.compat.notf"  # or it may load a framework, whose threads no fork takes along
        sys.modules.setdefault(notf, types.ModuleType(notf))
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0}).Reload()
        return {tag: self._points(tag, events.Scalars(tag)) for tag in events.Tags()["scalars"]}

    def _points(self, tag: str, points: list[Any]) -> list[Any]:
        if tag.startswith("test/"):  # a run that was killed after its test is tested again
            return sorted({(point.step, point.value) for point in points})
        return [(point.step, None if tag.startswith("train/") else point.value) for point in points]


class Plain:
    """A training without a framework that hashes the state, for kills at every operation."""

    name, steps = "plain", 12

    def prepare(self) -> None:
        """There is nothing that takes long."""

    def start(self, results: Path, node: Path) -> RunDir:
        """A new run folder."""
        run = create(results, "chaos")
        run.config.write_text(json.dumps({"node": str(node)}))
        return run

    def train(self, run: RunDir) -> int:
        """Hash the state, save after every second step, and mark some as the best."""
        try:
            return self._train(run)
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 1

    def _train(self, run: RunDir) -> int:
        from train_anywhere.runs.lock import RunLock

        with RunLock(run), opened(run) as checkpointer:
            saved = checkpointer.store.newest_good()
            state = (saved.path / "state").read_text() if saved else ""
            for step in range(saved.step if saved else 0, self.steps):
                state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
                checkpointer.check()
                if (step + 1) % 2 == 0:
                    checkpointer.wait()
                    value = step * 7 % 5 if (step + 1) % 4 == 0 else None
                    info = CheckpointInfo(step + 1, 0, step, {}, value, "plain")
                    checkpointer.save(writer(state), info)
        return 0

    def weights(self, saved: SavedCheckpoint) -> str:
        """The state itself."""
        return (saved.path / "state").read_text()

    def curves(self, run: RunDir) -> None:
        """It has none."""


@contextmanager
def opened(run: RunDir) -> Iterator[Any]:
    """The checkpointer, opened as the training loops do."""
    from train_anywhere.checkpoints.recovery import open_checkpointer

    class Rule:
        mode, keep_last, keep_every_n_epochs = "max", 2, None
        local = json.loads(run.config.read_text())["node"]

    with open_checkpointer(Rule, run) as checkpointer:  # type: ignore[arg-type]
        yield checkpointer


def writer(state: str) -> Callable[[Path], None]:
    """Writes this state, whatever comes after it."""

    def write(folder: Path) -> None:
        (folder / "state").write_text(state)

    return write


def digest(tree: Any) -> str:
    """Compare two trees of dicts, lists, tensors and plain values bit by bit."""
    if isinstance(tree, dict):
        parts = [f"{key}:{digest(tree[key])}" for key in sorted(tree, key=str)]
    elif isinstance(tree, (list, tuple)):
        parts = [digest(part) for part in tree]
    elif hasattr(tree, "numpy"):
        return digest(tree.numpy())
    elif hasattr(tree, "tobytes"):
        parts = [str(tree.dtype), str(tree.shape), hashlib.sha256(tree.tobytes()).hexdigest()]
    else:
        parts = [repr(tree)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


TRAINEES: dict[str, Callable[..., Plain | Framework]] = {
    "plain": Plain,
    "lightning": partial(Framework, "lightning"),
    "keras": partial(Framework, "keras"),
}

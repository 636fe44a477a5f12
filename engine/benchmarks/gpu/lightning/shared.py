"""Four members of a sweep that share the GPU, beside one after another, and a batch that is computed in parts."""

import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.gpu.lightning.training import fit
from benchmarks.gpu.row import Place, Row
from train_anywhere.files import ROOT

WORDS = ("model=mlp", "model.dropout=0", "trainer.max_epochs=3")


def rows(place: Place) -> Iterator[Row]:
    """Times of both sweeps; memory and loss of whole batches and of parts."""
    together = "cluster.members_per_gpu=4" if place.gpu else "cluster.members_per_node=4"
    seconds, codes = [], []
    for share in ([], [together]):
        words = place.words("-m", "seed=1,2,3,4", *WORDS, *share)
        began = time.monotonic()
        codes.append(subprocess.call([sys.executable, str(ROOT / "src" / "train.py"), *words]))
        seconds.append(time.monotonic() - began)
    found = f"{seconds[1]:.0f} s, one after another {seconds[0]:.0f} s"
    yield Row("4 members of a sweep share the GPU", codes == [0, 0], found)
    losses, memory = [], []
    for part in (96, 24):
        if place.gpu:
            torch.cuda.reset_peak_memory_stats()
        losses.append(fit(*place.run(*WORDS, f"trainer.micro_batch={part}")).metrics["val/loss"])
        memory.append(torch.cuda.max_memory_allocated() / 1e6 if place.gpu else 0.0)
    near = abs(losses[0] - losses[1]) <= 1e-3 * losses[0]  # a GPU adds in another order
    found = f"{memory[1]:.0f} MB, whole {memory[0]:.0f} MB; val/loss {losses[1]:.6f}, whole {losses[0]:.6f}"
    yield Row("a batch in 4 parts", near, found)

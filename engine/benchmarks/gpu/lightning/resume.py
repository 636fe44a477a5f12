"""A run that was stopped and resumed ends with the same bits as one that was not, in every precision."""

from collections.abc import Iterator
from functools import partial

import torch
from torch._dynamo.utils import counters

from benchmarks.gpu.lightning.training import STOP, fit, state
from benchmarks.gpu.row import Place, Row, resumed, tried

STEPS = ("trainer.max_epochs=3", "data.batch_size=96", "trainer.gradient_clip_val=0.5", "schedule=cosine")
"""Of the digits: 15 steps an epoch."""

MLP = ("model=mlp", "model.hidden=[256]", "model.dropout=0.5")
CNN = ("model=cnn", "model.dropout=0.5")

KINDS = {
    "float32": MLP,
    "float32 without TF32": (*MLP, "trainer.tf32=false"),
    "16-mixed": (*MLP, "trainer.precision=16-mixed"),
    "bf16-mixed": (*MLP, "trainer.precision=bf16-mixed"),
    "accumulated": (*MLP, "trainer.accumulate_grad_batches=2"),
    "compiled": (*MLP, "trainer.precision=bf16-mixed", "trainer.compile=true"),
    "pictures": (*CNN, "trainer.precision=bf16-mixed"),
    "pictures, channels last, compiled": (
        *CNN,
        "trainer.precision=bf16-mixed",
        "trainer.channels_last=true",
        "trainer.compile=true",
    ),
}


def rows(place: Place) -> Iterator[Row]:
    """One for each kind."""
    torch.backends.cudnn.deterministic = True  # else some of its convolutions add up in any order
    for name, words in KINDS.items():
        if place.gpu or "16-mixed" not in name:
            yield tried(f"stopped and resumed: {name}", partial(_differs, place, words))
    yield tried("saved without compiling, resumed with it", lambda: _other(place))
    yield tried("another node compiles nothing: cluster.cache", lambda: _kept(place))


def _differs(place: Place, words: tuple[str, ...]) -> str | None:
    return resumed(place, (*STEPS, *words), (STOP, "callbacks.stop.step=8"), fit, state)


def _other(place: Place) -> str | None:
    """Names and shapes of a checkpoint do not depend on how it is trained."""
    plain, run = place.run(*STEPS, *MLP, STOP, "callbacks.stop.step=8")
    fit(plain, run)
    words = (*STEPS, *MLP, "trainer.compile=true", "trainer.precision=bf16-mixed")
    ended = fit(place.config(*words), run)
    right = ended.state == "completed" and ended.metrics["test/acc"] > 0.8
    return None if right else f"{ended.state}, test/acc {ended.metrics.get('test/acc')}"


def _kept(place: Place) -> str | None:
    """The second start finds the code of the first one, on the disk of another node."""
    words = (*STEPS, *MLP, "trainer.compile=true", f"cluster.cache={place.folder}/cache")
    for disk in ("one", "two"):
        torch._dynamo.reset()
        counters.clear()
        fit(*place.run(*words, f"cluster.local_disk={place.folder}/{disk}"))
    missed, found = (counters["inductor"][f"fxgraph_cache_{kind}"] for kind in ("miss", "hit"))
    return None if found and not missed else f"{missed} graphs compiled, {found} found"

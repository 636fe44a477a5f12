"""Strategies that need NCCL, with the one rank that one GPU allows; and two ranks on one GPU, which meet by Gloo."""

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.lightning.training import fit
from benchmarks.gpu.row import Place, Row, tried
from train_anywhere.distributed.layout import make_layout
from train_anywhere.launch.local_run import make_run
from train_anywhere.launch.processes import run_here

WORDS = (
    "model=mlp",
    "model.hidden=[256]",
    "model.dropout=0.0",
    "trainer.max_epochs=2",
    "trainer.gradient_clip_val=0.5",
    "trainer.tf32=false",
    "seed=3",
)

WITH_NORMS = ("model=cnn", *(word for word in WORDS if not word.startswith("model")), "model.dropout=0.0")

CLOSE = 1e-3
"""By how much of it the loss of the test may differ: sums are rounded in another order."""


def rows(place: Place) -> Iterator[Row]:
    """One for each strategy."""
    config, run = place.run(*WORDS)
    alone = fit(config, run).metrics["test/loss"]
    kinds: list[tuple[str, ...]] = [
        ("strategy=ddp",),
        ("strategy=ddp", "strategy.static_graph=true"),
        ("strategy=fsdp",),
        ("strategy=fsdp", "trainer.precision=bf16-mixed", "trainer.compile=true"),
    ]
    for words in kinds:
        yield tried(f"as one process: {' '.join(words)}, one rank", partial(_differs, place, words, alone))
    yield tried("as one process: strategy=ddp, two ranks by Gloo", lambda: _two(place, WORDS, alone))
    if place.gpu:  # torch supports it on GPUs only
        config, run = place.run(*WITH_NORMS)
        alone = fit(config, run).metrics["test/loss"]
        words = (*WITH_NORMS, "trainer.sync_batchnorm=true")
        yield tried(
            "as one process: sync_batchnorm, two ranks by Gloo", lambda: _two(place, words, alone, 10 * CLOSE)
        )


def _differs(place: Place, words: tuple[str, ...], alone: float) -> str | None:
    config, run = place.run(*WORDS, *words)
    close = 30 * CLOSE if config.trainer.precision != "32" else CLOSE
    return _other(fit(config, run).metrics["test/loss"], alone, close)


def _two(place: Place, words: tuple[str, ...], alone: float, close: float = CLOSE) -> str | None:
    words = (
        *words,
        "strategy=ddp",
        "strategy.process_group_backend=gloo",
        "trainer.devices=2",
    )
    config = place.config(*words)
    layout = make_layout(
        config.framework, config.strategy.name, (2,)
    )  # as the machine had two; each rank sees the one GPU as its only one
    run = make_run(config, place.words(*words), layout)
    if code := run_here(run, config, layout):
        return f"exit code {code}"
    return _other(float(run.read_info()["metrics"]["test/loss"]), alone, close)


def _other(loss: float, alone: float, close: float) -> str | None:
    return None if abs(loss - alone) <= close * alone else f"test/loss {loss:.5f}, of one process {alone:.5f}"

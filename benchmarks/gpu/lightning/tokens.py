"""Tokens per second of a GPT, beside a loop written by hand with the same network, batches and settings."""

from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.lightning.training import CLOCK, clock, fit
from benchmarks.gpu.row import STRETCH, WARM, Clock, Place, Row
from src.config.schema import Config
from src.data.sets import open_splits
from src.distributed.topology import Topology
from src.tasks.language_model import IGNORED
from src.training.lightning.run import make
from src.training.network import build_network
from src.training.peak import peak

STEPS = WARM + 8 * STRETCH


def words(place: Place) -> list[str]:
    """Of a run: texts that last for it without an epoch's end."""
    texts = place.folder / "texts"
    texts.mkdir(exist_ok=True)
    for number in range(120 if place.gpu else 4):
        (texts / f"{number}.txt").write_text(f"{number}\n" + "\n".join(topics.values()))
    size = ["model=gpt_125m", "data.batch_size=32", "data.length=1024"]
    tiny = ["model.layers=1", "model.heads=2", "model.kv_heads=1", "model.width=32"]
    small = ["model=gpt", "data.batch_size=4", "data.length=64", *tiny]
    return [
        "task=language_model",
        "data=text",
        f"data.dir={texts}",
        f"data.cache={place.folder}/tokens",
        *(size if place.gpu else small),
        "optimizer.weight_decay=0.1",
        "trainer.gradient_clip_val=1.0",
        "trainer.precision=bf16-mixed",
        "trainer.limit_val_batches=0",
        "trainer.limit_test_batches=0",
    ]


def rows(place: Place) -> Iterator[Row]:
    """Ours and by hand in turns, as it comes and compiled."""
    for compiled in (False, True):
        config = place.config(
            *words(place), f"trainer.max_steps={STEPS}", CLOCK, f"trainer.compile={str(compiled).lower()}"
        )
        found: dict[str, list[float]] = {"by hand": [], "ours": []}
        for _ in range(2):
            found["by hand"].append(by_hand(config))
            found["ours"].append(ours(place, config))
        each = config.data.batch_size * int(config.data.arguments["length"])
        network = build_network(config, open_splits(config.data, "lightning", 1).facts)
        most = peak(torch.cuda.get_device_name(), "bf16-mixed") if place.gpu else None
        for name, seconds in found.items():
            rate = each / min(seconds)
            share = f", {rate * network.flops_per_token / most:.1%} of the chip's peak" if most else ""
            beside = f", {min(found['by hand']) / min(seconds):.3f} of by hand" if name == "ours" else ""
            yield Row(
                f"{'gpt_125m' if place.gpu else 'small gpt'}, {_how(compiled)}: {name}",
                None,
                f"{rate:,.0f} tokens/s{beside}{share}",
            )


def _how(compiled: bool) -> str:
    return "bf16, compiled" if compiled else "bf16"


def ours(place: Place, config: Config) -> float:
    """Seconds of a step."""
    from src.distributed.layout import local_layout
    from src.launch.local import make_run

    fit(config, make_run(config, [], local_layout(config)))
    return clock.seconds()


def by_hand(config: Config) -> float:
    """The same without this project: autocast, a fused AdamW, clipping."""
    ticks, batches, network, device = prepared(config)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=1e-3, weight_decay=0.1, fused=device.type == "cuda"
    )
    for batch in batches:
        tokens = {name: rows.to(device, non_blocking=True) for name, rows in batch.rows.items()}
        with torch.autocast(device.type, torch.bfloat16):
            logits = network(tokens["tokens"])
        loss = functional.cross_entropy(
            logits.float().flatten(0, 1), tokens["targets"].flatten(), ignore_index=IGNORED
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ticks.step()
        if ticks.steps == STEPS:
            break
    return ticks.seconds()


def prepared(config: Config) -> tuple[Clock, Any, Any, torch.device]:
    """What a loop by hand begins with: our loader and a network of ours, compiled if that is asked for."""
    batches = make(config, Topology()).parts.train.loader()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build_network(config, open_splits(config.data, "lightning", config.seed).facts).to(device)
    if config.trainer.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return Clock(), batches, torch.compile(network) if config.trainer.compile else network, device

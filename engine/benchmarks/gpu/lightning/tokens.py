"""Tokens per second of a GPT, beside a loop written by hand with the same network, batches and settings."""

from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch.nn import functional

from benchmarks.gpu.lightning.training import CLOCK, beside_hand, ours, prepared
from benchmarks.gpu.row import STRETCH, WARM, Place, Row
from src.tasks.lightning.language_model import IGNORED, LanguageModel
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.training.plan import build_network

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
            found["ours"].append(ours(config))
        each = config.data.batch_size * int(config.data.arguments["length"])
        network = build_network(config, open_splits(config.data, "lightning", 1).facts)
        name = f"{'gpt_125m' if place.gpu else 'small gpt'}, {'bf16, compiled' if compiled else 'bf16'}"
        # 6 N + 12 L d T (arXiv 2204.02311, B): weights, forward and backward, and attention over all positions of a row
        sizes = config.model.arguments
        weights = sum(parameter.numel() for parameter in network.parameters())
        attention = sizes["layers"] * sizes["width"] * config.data.arguments["length"]
        yield from beside_hand(place, name, "tokens", each, 6.0 * weights + 12.0 * attention, found)


def by_hand(config: Config) -> float:
    """The same without this project: autocast, a fused AdamW, clipping."""
    ticks, batches, network, device = prepared(config)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=1e-3, weight_decay=0.1, fused=device.type == "cuda"
    )
    for batch in batches:
        rows = LanguageModel(network, lambda network: None).on_before_batch_transfer(batch, 0)
        tokens = {name: value.to(device, non_blocking=True) for name, value in rows.items()}
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

"""Images per second of ResNet-50, beside a loop written by hand with the same network, batches and settings."""

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.gpu.lightning.training import CLOCK, beside_hand, ours, prepared
from benchmarks.gpu.row import STRETCH, WARM, Place, Row
from train_anywhere.config.schema import Config

STEPS = WARM + 9 * STRETCH

FLOPS = 3 * 2 * 4.09e9
"""Of an image of 224 x 224 in training: 4.09e9 multiplications and additions forward (torchvision's table of its ResNet-50, which is this
variant), and twice as many backward."""

SETTINGS = {
    "bf16": (),
    "bf16, channels last": ("trainer.channels_last=true",),
    "bf16, channels last, compiled": ("trainer.channels_last=true", "trainer.compile=true"),
}


def words(place: Place) -> list[str]:
    """Of a run without an epoch's end."""
    size = ["model=resnet50", "data.batch_size=256", "data.workers=14"]
    small = ["model=resnet18", "data.batch_size=4", "data.height=32", "data.width=32"]
    rows = (256 if place.gpu else 4) * (STEPS + 1)
    return [
        "data=synthetic",
        *(size if place.gpu else small),
        f"data.length={rows}",
        "optimizer=sgd",
        f"trainer.max_steps={STEPS}",
        "trainer.precision=bf16-mixed",
        "trainer.limit_val_batches=0",
        "trainer.limit_test_batches=0",
        CLOCK,
    ]


def rows(place: Place) -> Iterator[Row]:
    """Ours and by hand in turns, for each of the settings."""
    for name, settings in SETTINGS.items():
        config = place.config(*words(place), *settings)
        found = {"by hand": [by_hand(config)], "ours": [ours(config)]}
        what = f"{'resnet50' if place.gpu else 'small resnet'}, {name}"
        yield from beside_hand(place, what, "images", config.data.batch_size, FLOPS, found)


def by_hand(config: Config) -> float:
    """Seconds of a step without this project: autocast, a fused SGD."""
    ticks, batches, network, device = prepared(config)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=device.type == "cuda")
    for batch in batches:
        images, labels = (rows.to(device, non_blocking=True) for rows in batch.rows)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ticks.step()
        if ticks.steps == STEPS:
            break
    return ticks.seconds()

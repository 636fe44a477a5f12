"""Who works with what: the strategy, its devices and its ranks."""

from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import Layout, local_layout, make_layout, running_strategy
from train_anywhere.distributed.topology import Topology

MakeConfig = Callable[..., Config]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", Layout("single", (1,), (1,))),
        ("trainer.devices=3", Layout("ddp", (3,), (3,))),
        ("trainer.total_devices=3", Layout("ddp", (3,), (3,))),
        ("strategy=dp trainer.devices=3", Layout("dp", (3,), (1,))),
        ("framework=keras trainer.devices=3", Layout("mirrored", (3,), (1,))),
        ("framework=keras strategy=horovod trainer.devices=3", Layout("horovod", (3,), (3,))),
    ],
)
@pytest.mark.quick("trainer.devices=3-expected1", "trainer.total_devices=3-expected2")
def test_on_this_machine(words: str, expected: Layout, make_config: MakeConfig) -> None:
    assert local_layout(make_config("trainer.accelerator=cpu", *words.split())) == expected


def test_on_two_uneven_nodes() -> None:
    layout = make_layout("keras", "auto", (2, 1))
    assert layout == Layout("multiworker_mirrored", (2, 1), (2, 1))
    assert (layout.world_size, layout.device_count) == (3, 3)


@pytest.mark.parametrize(
    ("words", "world", "expected"),
    [
        (
            "framework=lightning trainer.devices=4",
            1,
            ("single", 1),
        ),  # one rank of a run that was made for four
        ("trainer.devices=4", 4, ("ddp", 4)),
        ("strategy=dp trainer.devices=4", 1, ("dp", 4)),
        ("framework=keras trainer.devices=4", 1, ("mirrored", 4)),
    ],
)
@pytest.mark.quick(
    "framework=lightning trainer.devices=4-1-expected0", "strategy=dp trainer.devices=4-1-expected2"
)
def test_a_running_rank_counts_the_ranks_that_are_there(
    words: str, world: int, expected: tuple[str, int], make_config: MakeConfig
) -> None:
    topology = Topology(world_size=world, local_world_size=world)
    assert running_strategy(make_config("trainer.accelerator=cpu", *words.split()), topology) == expected

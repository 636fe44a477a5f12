"""Who works with what: the strategy, its devices and its ranks."""

from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.distributed.horovod.initialize import horovod_environment
from train_anywhere.distributed.layout import Layout, local_layout, make_layout, running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError

MakeConfig = Callable[..., Config]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", Layout("single", (1,), (1,))),
        ("trainer.devices=3", Layout("ddp", (3,), (3,))),
        ("trainer.total_devices=3", Layout("ddp", (3,), (3,))),
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
        ("framework=lightning trainer.devices=4", 1, ("single", 1)),  # of a run that was made for four
        ("trainer.devices=4", 4, ("ddp", 4)),
        ("framework=keras trainer.devices=4", 1, ("mirrored", 4)),
    ],
)
@pytest.mark.quick("framework=lightning trainer.devices=4-1-expected0")
def test_a_running_rank_counts_the_ranks_that_are_there(
    words: str, world: int, expected: tuple[str, int], make_config: MakeConfig
) -> None:
    topology = Topology(world_size=world, local_world_size=world)
    assert running_strategy(make_config("trainer.accelerator=cpu", *words.split()), topology) == expected


@pytest.mark.parametrize(
    ("node_rank", "local_rank", "local_world_size", "cross"),
    [(0, 0, 1, ("0", "3")), (1, 0, 2, ("1", "3")), (1, 1, 2, ("0", "1")), (2, 0, 1, ("2", "3"))],
)
def test_horovod_cross_rank_counts_nodes_that_have_the_local_rank(
    node_rank, local_rank, local_world_size, cross
):
    t = Topology(
        rank=node_rank + local_rank, local_rank=local_rank, node_rank=node_rank, world_size=4,
        local_world_size=local_world_size, nodes=3, hosts=(("a", 1), ("b", 2), ("c", 1)),
    )  # fmt: skip
    variables = horovod_environment(t)
    assert (variables["HOROVOD_CROSS_RANK"], variables["HOROVOD_CROSS_SIZE"]) == cross


def test_horovod_of_even_nodes_needs_no_list_of_hosts():
    t = Topology(rank=3, local_rank=1, node_rank=1, world_size=4, local_world_size=2, nodes=2)
    assert horovod_environment(t)["HOROVOD_CROSS_RANK"] == "1"


def test_horovod_of_uneven_nodes_does():
    with pytest.raises(TopologyError, match="TRAIN_HOSTS"):
        horovod_environment(Topology(rank=2, node_rank=1, world_size=3, nodes=2))

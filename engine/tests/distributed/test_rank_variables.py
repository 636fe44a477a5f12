"""The variables in which Horovod gets a topology."""

import pytest

from train_anywhere.distributed.horovod.initialize import horovod_environment
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError


@pytest.mark.parametrize(
    ("node_rank", "local_rank", "local_world_size", "cross"),
    [(0, 0, 1, ("0", "3")), (1, 0, 2, ("1", "3")), (1, 1, 2, ("0", "1")), (2, 0, 1, ("2", "3"))],
)
def test_horovod_cross_rank_counts_nodes_that_have_the_local_rank(
    node_rank, local_rank, local_world_size, cross
):
    t = Topology(
        rank=node_rank + local_rank, local_rank=local_rank, node_rank=node_rank, world_size=4,
        local_world_size=local_world_size, nodes=3, node_list="a,b,c", tasks_per_node="1,2,1",
    )  # fmt: skip
    variables = horovod_environment(t)
    assert (variables["HOROVOD_CROSS_RANK"], variables["HOROVOD_CROSS_SIZE"]) == cross
    assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"


def test_horovod_of_even_nodes_needs_no_list_of_hosts():
    t = Topology(rank=3, local_rank=1, node_rank=1, world_size=4, local_world_size=2, nodes=2)
    assert horovod_environment(t)["HOROVOD_CROSS_RANK"] == "1"


def test_horovod_of_uneven_nodes_does():
    with pytest.raises(TopologyError, match="TRAIN_HOSTS"):
        horovod_environment(Topology(rank=2, node_rank=1, world_size=3, nodes=2))


def test_horovod_of_a_single_rank_has_no_rendezvous():
    assert not any("RENDEZVOUS" in name for name in horovod_environment(Topology()))

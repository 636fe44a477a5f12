"""The rank of this process and the hosts of the others, determined once at the start and passed to all code that needs them."""

import os
from dataclasses import dataclass

from train_anywhere.distributed.network.hostlist import expand_hosts, expand_tasks
from train_anywhere.errors import TopologyError

ZERO_EXIT_LAUNCHERS = ("torchrun", "mpirun", "horovodrun")
"""Launchers that change any exit code but 0 and print a page about it. The batch script reads the state that rank 0 recorded."""


@dataclass(frozen=True)
class Topology:
    """The rank of this process, and the nodes and ranks of the run.

    Attributes:
        rank, world_size: number of this process, and number of processes.
        local_rank, local_world_size: the same on this node.
        node_rank, nodes: number of this node, and number of nodes.
        coordinator_address, coordinator_port: host and port where rank 0 listens; port 0 for a single rank: any free one.
        launched_by: the launcher: one of `LAUNCHERS`, local or none.
        node_list, tasks_per_node: the hosts and their ranks, in Slurm's notation; "" if the launcher does not pass them.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    nodes: int = 1
    coordinator_address: str = "127.0.0.1"
    coordinator_port: int = 0
    launched_by: str = "none"
    node_list: str = ""
    tasks_per_node: str = ""

    @property
    def rendezvous_port(self) -> int:
        """The port at which ranks connect to rank 0: the coordinator's port, or the next one if the launcher listens there itself."""
        if self.launched_by == "torchrun":
            return self.coordinator_port + 1
        return self.coordinator_port

    def layout(self) -> list[tuple[str, int]]:
        """Return host and number of ranks of each node, in the order of the ranks.

        Raises:
            TopologyError: the launcher does not pass them, or lists another number of ranks.
        """
        if not self.node_list and self.nodes == 1:
            return [(self.coordinator_address, self.world_size)]
        hosts, tasks = expand_hosts(self.node_list or "unknown"), expand_tasks(self.tasks_per_node or "0")
        if len(hosts) != len(tasks) or sum(tasks) != self.world_size:
            raise TopologyError(
                f"{self.launched_by} started {self.world_size} ranks on {self.nodes} nodes, but their hosts are "
                f"{f'{self.node_list} with {self.tasks_per_node}' if self.node_list else 'unknown'}: export "
                f"TRAIN_HOSTS=node1:2,node2:1 (host:ranks in the order of the ranks, {self.world_size} in "
                "all)."
            )
        return list(zip(hosts, tasks, strict=True))

    def hosts(self) -> list[str]:
        """Return the names of the nodes in the order of the node ranks; only this node's if the others are not known."""
        return expand_hosts(self.node_list) if self.node_list else [os.uname().nodename]

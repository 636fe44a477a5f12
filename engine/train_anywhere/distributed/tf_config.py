"""The environment variable from which TensorFlow reads the topology."""

import json

from train_anywhere.distributed.network.addresses import addresses, node_name
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError


def tf_config(topology: Topology, first_port: int | None = None) -> str:
    """Return TF_CONFIG: one worker per rank; local rank i listens on `first_port` + i (default: the coordinator's port).

    Raises:
        TopologyError: the hosts of the ranks are not known, or another host is listed for this node.
    """
    layout = topology.layout()
    names = [host for host, _ in layout]
    _check_place(topology, names, node_name())
    known = addresses(names) if topology.nodes > 1 else dict(zip(names, names, strict=True))
    port = topology.rendezvous_port if first_port is None else first_port
    workers = [f"{known[host]}:{port + local_rank}" for host, tasks in layout for local_rank in range(tasks)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": topology.rank}})


def _check_place(topology: Topology, hosts: list[str], name: str) -> None:
    """Raise TopologyError if the launcher numbers the nodes differently: others would look for this worker on a wrong host."""
    short = [host.partition(".")[0] for host in hosts]
    here = name.partition(".")[0]
    if here in short and short[topology.node_rank] != here:
        raise TopologyError(
            f"{topology.launched_by} made {here} node {topology.node_rank}, which is {short[topology.node_rank]} "
            "in the list of hosts: number the nodes in the order of the list, or use launch=srun."
        )

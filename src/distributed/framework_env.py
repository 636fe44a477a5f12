"""Pass a topology to a framework in the variables that it reads; and the checksum with which ranks are compared afterwards."""

import json
import os

from src.distributed.topology import Topology
from src.errors import TopologyError


def tf_config(topology: Topology, first_port: int | None = None) -> str:
    """TF_CONFIG: one worker per rank; local rank i listens on `first_port` + i (default: the coordinator's port).

    Raises:
        TopologyError: the hosts of the ranks are not known, or this node is not the one that they list.
    """
    layout = topology.layout()
    _check_place(topology, [host for host, _ in layout], os.uname().nodename)
    # torchrun itself listens on the coordinator's port
    default = topology.coordinator_port + (topology.launched_by == "torchrun")
    port = default if first_port is None else first_port
    workers = [f"{host}:{port + local_rank}" for host, tasks in layout for local_rank in range(tasks)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": topology.rank}})


def horovod_environment(topology: Topology) -> dict[str, str]:
    """HOROVOD_* for Horovod's Gloo controller, without MPI and without horovodrun.

    The cross rank is the order among the nodes that have this local rank, so that uneven nodes work. Names as
    in horovod/runner/gloo_run.py. A single rank needs no rendezvous.

    Raises:
        TopologyError: nodes have different numbers of ranks, and the hosts of the ranks are not known.
    """
    t = topology
    rendezvous = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": t.coordinator_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(t.coordinator_port),
    }
    even = t.local_world_size * t.nodes == t.world_size
    tasks = [t.local_world_size] * t.nodes if even else [count for _, count in t.layout()]
    peers = [node for node, count in enumerate(tasks) if count > t.local_rank]
    return {
        "HOROVOD_RANK": str(t.rank),
        "HOROVOD_SIZE": str(t.world_size),
        "HOROVOD_LOCAL_RANK": str(t.local_rank),
        "HOROVOD_LOCAL_SIZE": str(t.local_world_size),
        "HOROVOD_CROSS_RANK": str(peers.index(t.node_rank)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        "HOROVOD_HOSTNAME": f"node-{t.node_rank}",  # any name that the ranks of one node share
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **(rendezvous if t.world_size > 1 else {}),
    }


def _check_place(topology: Topology, hosts: list[str], name: str) -> None:
    """torchrun numbers the nodes itself; a worker that is not on the host that the list gives it is never found."""
    short = [host.partition(".")[0] for host in hosts]
    here = name.partition(".")[0]
    if here in short and short[topology.node_rank] != here:
        raise TopologyError(
            f"{topology.launched_by} made {here} node {topology.node_rank}, which is {short[topology.node_rank]} "
            "in the list of hosts: start torchrun with --node-rank=$SLURM_NODEID --rdzv-backend=static, or use "
            "launch=srun."
        )

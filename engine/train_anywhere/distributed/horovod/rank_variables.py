"""The environment variables from which Horovod reads a rank's place in the topology."""

from train_anywhere.distributed.topology import Topology


def horovod_environment(topology: Topology) -> dict[str, str]:
    """Return the HOROVOD_* variables for Horovod's Gloo controller, without MPI and without horovodrun.

    The cross rank numbers the nodes that have this local rank, so that nodes may have different numbers of ranks. The names are those
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
        "HOROVOD_HOSTNAME": f"node-{t.node_rank}",  # can be any name that the ranks of one node share
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **(rendezvous if t.world_size > 1 else {}),
    }

"""The store in which torch's ranks meet, served by rank 0 on an address that only they can reach."""

from datetime import timedelta

from torch.distributed import HashStore, Store, TCPStore

from train_anywhere.distributed.network.rendezvous_socket import listen, rendezvous_address
from train_anywhere.distributed.topology import Topology


def open_store(topology: Topology, timeout: timedelta) -> Store | None:
    """Return this rank's client of the store; None under torchrun, which has its own store.

    By default torch would listen on all interfaces, even for a single rank.

    Raises:
        TopologyError: the port is already used.
    """
    if topology.launched_by == "torchrun":
        return None
    if topology.world_size == 1:
        return HashStore()
    address, port = rendezvous_address(topology), topology.coordinator_port
    if topology.rank != 0:
        return TCPStore(address, port, topology.world_size, is_master=False, timeout=timeout)
    server = listen(topology, port)
    return TCPStore(
        address,
        port,
        topology.world_size,
        is_master=True,
        timeout=timeout,
        master_listen_fd=server.detach(),  # torch closes it
    )

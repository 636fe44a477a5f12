"""The socket on which rank 0 accepts the others: on loopback if all ranks are on one node, else on the job's network only."""

import os
import socket
from contextlib import suppress

from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError

LOOPBACK = "127.0.0.1"


def rendezvous_address(topology: Topology) -> str:
    """Return the address at which all ranks reach rank 0."""
    return LOOPBACK if topology.nodes == 1 else topology.coordinator_address


def listen(topology: Topology, port: int) -> socket.socket:
    """Return a listening socket of rank 0.

    It listens on all addresses if rank 0's node resolves its own name to loopback (127.0.1.1 in Debian's /etc/hosts) or to another
    machine's address: then it is unknown at which address the others arrive.

    Raises:
        TopologyError: the port is in use.
    """
    address = LOOPBACK
    if topology.nodes > 1:
        with suppress(OSError):
            address = socket.gethostbyname(topology.coordinator_address)
        if address.startswith("127.") or not _is_own(address):
            address = ""
    try:
        return socket.create_server((address, port), backlog=1024)  # many ranks connect at once
    except OSError as error:
        raise TopologyError(
            f"port {port} of rank 0's node, where the ranks meet, is taken ({os.strerror(error.errno or 0)}): "
            "export MASTER_PORT=<a free port>; each restart of a job chooses another port by itself."
        ) from error


def _is_own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True

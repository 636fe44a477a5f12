"""Where rank 0 listens for the others: on loopback where all ranks are on one node, else on the job's network only."""

import os
import socket
import sys
from contextlib import suppress

from src.distributed.discover import Topology
from src.errors import TopologyError

LOOPBACK = "127.0.0.1"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
"""Of the loopback address; by Linux's and macOS' convention."""


def stay_on_this_node(topology: Topology) -> None:
    """Make Gloo and NCCL listen on loopback where all ranks are on one node, unless the user has named an interface."""
    if topology.nodes == 1:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, INTERFACE)


def meeting_address(topology: Topology) -> str:
    """By which all ranks reach rank 0."""
    return LOOPBACK if topology.nodes == 1 else topology.coordinator_address


def listen(topology: Topology, port: int) -> socket.socket:
    """A socket of rank 0 that accepts the others.

    Where rank 0's own node takes its name for loopback (127.0.1.1 in Debian's /etc/hosts) or for no address of its own, no
    address is known by which the others come, and it listens on all.

    Raises:
        TopologyError: the port is taken.
    """
    address = LOOPBACK
    if topology.nodes > 1:
        with suppress(OSError):
            address = socket.gethostbyname(topology.coordinator_address)
        if address.startswith("127.") or not _own(address):
            address = ""
    try:
        return socket.create_server((address, port), backlog=1024)  # many ranks come at once
    except OSError as error:
        raise TopologyError(
            f"port {port} of rank 0's node, where the ranks are to meet, is taken ({os.strerror(error.errno or 0)}): "
            "export MASTER_PORT=<a free port>."
        ) from error


def _own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True

"""Addresses of a job's nodes, the socket of rank 0, and TF_CONFIG."""

import ipaddress
import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from train_anywhere.distributed import programs
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import SchedulerError, TopologyError, listed

try:
    import psutil
except ImportError:  # in a container
    psutil = None  # type: ignore[assignment]

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
"""Name of the loopback interface on Linux and macOS."""

ANYWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737), used to find the default route."""


def prepare_network(topology: Topology) -> Topology:
    """Return a topology with a reachable address of rank 0, and set unset interfaces."""
    if topology.nodes == 1:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK_INTERFACE)
        return topology
    # Gloo listens at the address of the host's own name; NCCL finds an interface itself
    interface = None if resolves_own_name() else interface_to_others(topology)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return replace(topology, coordinator_address=address_of(topology.coordinator_address))


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the scheduler's name of this node, which may differ from the host name."""
    return environ.get("TRAIN_NODE") or environ.get("SLURMD_NODENAME") or socket.gethostname()


def address_of(host: str) -> str:
    """Return what `addresses` returns for one host."""
    return addresses([host])[host]


def addresses(hosts: Sequence[str]) -> dict[str, str]:
    """Return for each host its name, or Slurm's NodeAddr if this node can't resolve the name."""
    unknown, output = [host for host in hosts if not _resolve(host)], ""
    if unknown and "SLURM_JOB_ID" in os.environ:
        try:
            output = programs.query(["scontrol", "--oneliner", "show", "node", ",".join(unknown)], "(?!)")
        except SchedulerError as error:
            print(
                f"{listed(unknown)}: this node can't resolve the name. {error}", file=sys.stderr, flush=True
            )
    found = dict(re.findall(r"^NodeName=(\S+).*? NodeAddr=(\S+)", output, re.M))
    return {host: found.get(host, host) if host in unknown else host for host in hosts}


def interface_to_others(topology: Topology) -> str | None:
    """Return the network interface through which this node reaches the others, if known."""
    known = addresses([topology.coordinator_address, *dict(topology.hosts[:2])])
    found = (interface_towards(address) for address in (*known.values(), ANYWHERE))
    return next((name for name in found if name not in (None, LOOPBACK_INTERFACE)), None)


def interface_towards(host: str) -> str | None:
    """Return the network interface that leads to a host, if known."""
    if not psutil:
        return None
    names = {a.address: name for name, found in psutil.net_if_addrs().items() for a in found}
    for family, address in _resolve(host):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing, only chooses the route
            if name := names.get(probe.getsockname()[0]):
                return name
    return None


def resolves_own_name() -> bool:
    """Return whether the host's own name resolves to an address that others can reach."""
    for family, address in _resolve(socket.gethostname()):
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address[0], 0, *address[2:]))
            return not ipaddress.ip_address(address[0]).is_loopback
    return False


def _resolve(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the address families and socket addresses of a host. Empty if it has none."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):  # ValueError: a name that is too long
        return []
    return [(family, address) for family, _, _, _, address in found]


LIBRARIES = ("torch", "tensorflow")
"""Packages whose exceptions count, besides RuntimeError; one of another package does not, whatever its message."""

FORMS = (
    # Gloo, after ranks have connected: earlier errors may be about this rank's own network
    r"gloo/transport/\S+\] (?P<gloo>(?:Read error|Write error|Connection closed by peer|Timed out waiting).*?)(?:\. |$)",
    # NCCL: ncclRemoteError, or the framework's watchdog after it
    r"(?P<nccl>remote process exited or there was a network error|NCCL communicator was aborted on rank \d+)",
    r"(?P<watchdog>Watchdog caught collective operation timeout)",
    # torch's store, whose server runs in a rank
    r"(?P<store>Connection was likely closed\. Did the remote server shutdown or crash\?|failed to recv, got 0 bytes)",
    # gRPC below the collectives of tf.distribute; these are also aborted if ranks disagree about a shape
    r"(?P<service>Failed to send RPC to coordination service)",
    r"Collective ops is aborted by: (?P<grpc>.*(?:[Cc]onnection re(?:set|fused)|Socket closed|Broken pipe|GOAWAY|heartbeat).*)",
)


def lost_rank(error: BaseException) -> str | None:
    """Return a library's message about a broken connection to another rank, else None."""
    kind = type(error)
    if kind is not RuntimeError and kind.__module__.partition(".")[0] not in LIBRARIES:
        return None
    found = re.search("|".join(FORMS), str(error), re.MULTILINE)
    return str(found[found.lastgroup or 0]).strip() if found else None


LOOPBACK = "127.0.0.1"


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive unused TCP ports of the loopback interface."""
    while True:
        first = 0
        with ExitStack() as stack:
            try:
                for number in range(count):
                    one = stack.enter_context(socket.socket())
                    one.bind((LOOPBACK, first and first + number))
                    first = first or int(one.getsockname()[1])
                return first
            except (OSError, OverflowError):
                if not first:
                    raise


def rendezvous_address(topology: Topology) -> str:
    """Return the address at which all ranks reach rank 0."""
    return LOOPBACK if topology.nodes == 1 else topology.coordinator_address


def listen(topology: Topology, port: int) -> socket.socket:
    """Return a listening socket of rank 0.

    It listens on all addresses if rank 0's node resolves its own name to loopback (127.0.1.1 in Debian's /etc/hosts) or to another
    machine's address: then it is unknown at which address the others arrive. Raises TopologyError if the port is in use.
    """
    address = LOOPBACK
    if topology.nodes > 1:
        with suppress(OSError):
            address = socket.gethostbyname(topology.coordinator_address)
        try:
            with socket.socket() as probe:
                probe.bind((address, 0))  # raises for the address of another machine
        except OSError:
            address = ""
        address = "" if address.startswith("127.") else address
    try:
        return socket.create_server((address, port), backlog=1024)  # many ranks connect at once
    except OSError as error:
        raise TopologyError(
            f"port {port} of rank 0's node, where the ranks meet, is taken ({os.strerror(error.errno or 0)}): "
            "export MASTER_PORT=<a free port>; each restart of a job chooses another port by itself."
        ) from error


def tf_config(topology: Topology, first_port: int | None = None) -> str:
    """Return TF_CONFIG with one worker per rank.

    Local rank i listens on `first_port` + i, by default from the coordinator's port on. Raises TopologyError if the hosts of the ranks are
    not known, or another host is listed for this node.
    """
    layout = topology.layout()
    names = [host for host, _ in layout]
    here, *short = (host.partition(".")[0] for host in (node_name(), *names))
    if here in short and short[topology.node_rank] != here:
        raise TopologyError(
            f"{topology.launched_by} made {here} node {topology.node_rank}, which is {short[topology.node_rank]} "
            "in the list of hosts: number the nodes in the order of the list, or use launch=srun."
        )
    known = addresses(names) if topology.nodes > 1 else dict(zip(names, names, strict=True))
    port = topology.rendezvous_port if first_port is None else first_port
    workers = [f"{known[host]}:{port + local_rank}" for host, tasks in layout for local_rank in range(tasks)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": topology.rank}})

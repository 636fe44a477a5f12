"""How the nodes of a job reach each other when their names lead nowhere, or to the node itself."""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

try:
    import psutil
except ImportError:  # in a container
    psutil = None  # type: ignore[assignment]

from train_anywhere.distributed import programs
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import SchedulerError

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
"""Name of the loopback interface on Linux and macOS."""

ANYWHERE = "192.0.2.1"
"""An address that is no machine's (RFC 5737): the default route leads to it."""


def prepare_network(topology: Topology) -> Topology:
    """Return the topology with an address of rank 0 that this node can reach, and name Gloo's and NCCL's interface if need be.

    An interface that the user has named stays.
    """
    if topology.nodes == 1:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK_INTERFACE)
        return topology
    # Gloo listens at the address of the host's own name. NCCL looks for an interface itself.
    interface = None if knows_its_address() else interface_to_others(topology)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return replace(topology, coordinator_address=address_of(topology.coordinator_address))


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this node as the scheduler writes it; the system may have another one."""
    return environ.get("TRAIN_NODE") or environ.get("SLURMD_NODENAME") or socket.gethostname()


def address_of(host: str) -> str:
    """Return `addresses` of one host."""
    return addresses([host])[host]


def addresses(hosts: Sequence[str]) -> dict[str, str]:
    """Return for each host a name or an address that leads to it: Slurm's NodeAddr if no resolver of this node knows the name."""
    unknown = [host for host in hosts if not _resolved(host)]
    return {host: host for host in hosts} | (_by_slurm(unknown) if unknown else {})


def interface_to_others(topology: Topology) -> str | None:
    """Return the name of the network interface through which this node reaches the others; None if it is not known."""
    known = addresses([topology.coordinator_address, *topology.hosts()[:2]])
    found = (interface_towards(address) for address in (*known.values(), ANYWHERE))
    return next((name for name in found if name not in (None, LOOPBACK_INTERFACE)), None)


def interface_towards(host: str) -> str | None:
    """Return the name of the network interface that leads to a host; None if it can't be found out."""
    if not psutil:
        return None
    names = {a.address: name for name, found in psutil.net_if_addrs().items() for a in found}
    for family, address in _resolved(host):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing, but chooses the route
            if name := names.get(probe.getsockname()[0]):
                return name
    return None


def knows_its_address() -> bool:
    """Return whether the host's own name leads to an address of this node that others may reach, as Gloo assumes."""
    for family, address in _resolved(socket.gethostname()):
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address[0], 0, *address[2:]))
            return not ipaddress.ip_address(address[0]).is_loopback
    return False


def _resolved(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the address families and socket addresses of a host; empty if no resolver knows it."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):  # ValueError: a name that is too long
        return []
    return [(family, address) for family, _, _, _, address in found]


def _by_slurm(hosts: Sequence[str]) -> dict[str, str]:
    """Return NodeAddr of those hosts that Slurm knows by another address than their name."""
    if "SLURM_JOB_ID" not in os.environ:
        return {}
    try:
        said = programs.ask(["scontrol", "--oneliner", "show", "node", ",".join(hosts)], "(?!)")
    except SchedulerError as error:
        print(f"{', '.join(hosts)}: no resolver knows this name here. {error}", file=sys.stderr, flush=True)
        return {}
    found = dict(re.findall(r"^NodeName=(\S+).*? NodeAddr=(\S+)", said, re.M))
    return {host: found[host] for host in hosts if host in found}

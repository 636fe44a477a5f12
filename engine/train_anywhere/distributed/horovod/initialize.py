"""Initialize Horovod in ranks of srun, of this project or of another launcher.

Horovod's ranks find each other through a small HTTP server, which horovodrun normally runs. Here rank 0 runs it in a thread, at the
coordinator's address. Under mpirun and horovodrun, Horovod finds its ranks itself.
"""

import importlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from train_anywhere.distributed.network import addresses
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, LostRankError, TopologyError, listed


def horovod_environment(topology: Topology) -> dict[str, str]:
    """Return the HOROVOD_* variables for Horovod's Gloo controller, without the place where ranks meet.

    The cross rank numbers the nodes that have this local rank, so that nodes may have different numbers of ranks. The names are those in
    horovod/runner/gloo_run.py. Raises TopologyError if nodes have different numbers of ranks, and the hosts of the ranks are not known.
    """
    t = topology
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
    }


START_TIMEOUT_S = 300.0
"""Seconds within which all ranks must start; imports are very slow if a file server is busy."""

CONNECT_S = 5.0
"""Seconds for a connection to rank 0, and for the number of a rank that has connected."""

BROKEN_COLLECTIVE = re.compile(r"Horovod has been shut down|gloo/transport/")
"""Matches the errors of Horovod, and of its Gloo, after an interrupted collective operation."""


def import_horovod(framework: str) -> Any:
    """Import Horovod's module for a framework. Raises ConfigError if the build does not fit."""
    problem = horovod_problem(framework)
    if problem:
        raise ConfigError(problem)
    # while ranks wait for a missing one, Horovod first warns, then exits with an error
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "30")
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600")
    return importlib.import_module(f"horovod.{framework}")


def start_horovod(topology: Topology, hvd: Any, timeout: float = START_TIMEOUT_S) -> None:
    """Initialize `hvd`, the module from `import_horovod`, unless it is initialized already.

    Raises:
        TopologyError: the ranks don't find each other within `timeout` seconds, or Horovod numbers them differently.
    """
    if hvd.is_initialized():
        return
    if topology.launched_by == "mpirun" and not hvd.mpi_built():
        raise TopologyError(
            "this Horovod was built without MPI, so ranks of mpirun don't find each other: load or install "
            "an MPI (mpicxx) and run `make horovod`, or use launch=horovodrun or launch=srun."
        )
    if topology.launched_by in ("mpirun", "horovodrun"):
        hvd.init()
    else:
        variables = gloo_variables(topology, topology.rendezvous_port, timeout)
        os.environ.update(variables)
        try:
            hvd.init()
        finally:  # later they would look like horovodrun's
            for name in variables:
                del os.environ[name]
    if (hvd.rank(), hvd.size()) != (topology.rank, topology.world_size):
        raise TopologyError(
            f"{topology.launched_by} made this rank {topology.rank} of {topology.world_size}, but in Horovod it "
            f"is rank {hvd.rank()} of {hvd.size()}: variables of two launchers are mixed; unset those of one."
        )


@contextmanager
def explain_lost_ranks(topology: Topology) -> Iterator[None]:
    """Turn the error of a broken collective, also a wrapped one, into a `LostRankError`."""
    try:
        yield
    except Exception as error:
        if not BROKEN_COLLECTIVE.search(str(error)):
            raise
        by = topology.launched_by
        launcher = {"local": "this program", "none": "its launcher"}.get(by, by)
        raise LostRankError(
            f"rank {topology.rank} of {topology.world_size} stops: another rank exited, is unreachable or did "
            f"not respond in time; see the messages of {launcher} and of Horovod."
        ) from error


def gloo_variables(topology: Topology, port: int, timeout: float = START_TIMEOUT_S) -> dict[str, str]:
    """Return the variables for Horovod once all ranks met at `port`. Raises TopologyError if they don't."""
    variables = horovod_environment(topology)
    address = socket.gethostbyname(addresses.rendezvous_address(topology))
    if topology.world_size > 1:
        variables |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        deadline = time.monotonic() + timeout
        # all ranks connect before Horovod starts, which waits only 30 s and does not report which rank is missing
        if topology.rank == 0:
            _await_ranks(topology, port, deadline, timeout)
        else:
            _report_to_rank_0(topology, address, port, deadline)
    interface = (
        addresses.interface_to_others(topology) if topology.nodes > 1 else addresses.LOOPBACK_INTERFACE
    )
    if interface and "HOROVOD_GLOO_IFACE" not in os.environ:
        variables["HOROVOD_GLOO_IFACE"] = interface  # else Gloo resolves the host's own name
    return variables


def _await_ranks(topology: Topology, port: int, deadline: float, timeout: float) -> None:
    """Wait for all ranks on rank 0, then run Horovod's own key-value server in a daemon thread. Raises TopologyError."""
    http_server = importlib.import_module("horovod.runner.http.http_server")
    listener, connections = addresses.listen(topology, port), dict[int, socket.socket]()

    class Server(http_server.RendezvousHTTPServer):  # type: ignore[misc, name-defined]
        socket: Any
        daemon_threads = True
        request_queue_size = 1024  # many ranks connect at once

        def server_bind(self) -> None:
            """Use the address at which the other ranks have arrived."""
            self.socket.close()
            self.socket = listener
            self.server_name, self.server_port = listener.getsockname()[:2]

    while missing := {*range(1, topology.world_size)} - connections.keys():
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        with suppress(OSError, ValueError):  # nobody comes in time, or not a rank
            connection, _ = listener.accept()
            connection.settimeout(CONNECT_S)
            connections[int(connection.makefile().readline())] = connection
        if time.monotonic() > deadline:
            names = f"rank{'s' if len(missing) > 1 else ''} {listed(map(str, sorted(missing)))}"
            raise TopologyError(f"{names} (of {topology.world_size}) did not start within {timeout:.0f} s.")
    listener.settimeout(None)
    server = Server(("", port), http_server.RendezvousHandler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for connection in connections.values():
        with suppress(OSError), connection:
            connection.sendall(b"started")


def _report_to_rank_0(topology: Topology, address: str, port: int, deadline: float) -> None:
    """Report to rank 0 that this one has started, and wait for the others. Raises TopologyError."""
    reported = False
    while not reported and time.monotonic() < deadline:
        # an error: rank 0 has not started yet, or has exited
        with suppress(OSError), socket.create_connection((address, port), CONNECT_S) as connection:
            if connection.getsockname() == connection.getpeername():  # TCP has connected the port to itself
                continue
            connection.sendall(f"{topology.rank}\n".encode())
            reported = True
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            if connection.recv(1):
                return
        time.sleep(0.1)
    what = "exited before all ranks had started" if reported else "did not start in time or is unreachable"
    raise TopologyError(f"rank {topology.rank} stops: rank 0 at {address}:{port} {what}.")

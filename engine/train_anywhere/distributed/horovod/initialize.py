"""Initialize Horovod in ranks of srun, of this project or of another launcher.

Horovod's ranks find each other through a small HTTP server, which horovodrun normally runs. Here rank 0 runs it in a thread, at the
coordinator's address. Under mpirun and horovodrun, Horovod finds its ranks itself.
"""

import http.client
import importlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from train_anywhere.distributed.network.addresses import (
    LOOPBACK_INTERFACE,
    interface_to_others,
    listen,
    rendezvous_address,
)
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

READ_TIMEOUT_S = 5.0
"""Seconds within which the other ranks read that all ranks have started."""

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
    address = socket.gethostbyname(rendezvous_address(topology))
    if topology.world_size > 1:
        variables |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        deadline = time.monotonic() + timeout
        # all ranks connect before Horovod starts, which waits only 30 s and does not report which rank is missing
        if topology.rank == 0:
            _await_ranks(_serve(topology, port), topology.world_size, deadline, timeout)
        else:
            _report_to_rank_0(topology, address, port, deadline)
    interface = interface_to_others(topology) if topology.nodes > 1 else LOOPBACK_INTERFACE
    if interface and "HOROVOD_GLOO_IFACE" not in os.environ:
        variables["HOROVOD_GLOO_IFACE"] = interface  # else Gloo resolves the host's own name
    return variables


def _serve(topology: Topology, port: int) -> Any:
    """Run Horovod's own key-value server in a daemon thread."""
    http_server = importlib.import_module("horovod.runner.http.http_server")

    class Server(http_server.RendezvousHTTPServer):  # type: ignore[misc, name-defined]
        socket: Any
        daemon_threads = True
        request_queue_size = 1024  # many ranks connect at once

        def server_bind(self) -> None:
            """Bind to the address at which the other ranks arrive."""
            self.socket.close()
            self.socket = listen(topology, port)
            self.server_name, self.server_port = self.socket.getsockname()[:2]

    server = Server(("", port), http_server.RendezvousHandler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _await_ranks(server: Any, world_size: int, deadline: float, timeout: float) -> None:
    everyone = {str(rank) for rank in range(1, world_size)}
    while missing := everyone - set(server.cache.get("started", {})):
        if time.monotonic() > deadline:
            names = f"rank{'s' if len(missing) > 1 else ''} {listed(map(str, sorted(map(int, missing))))}"
            raise TopologyError(f"{names} (of {world_size}) did not start within {timeout:.0f} s.")
        time.sleep(0.05)
    with server.cache_lock:
        server.cache["all"] = {"started": b"yes"}
    # a short program of rank 0 would end, and this server with it, before the others have read that
    deadline = time.monotonic() + READ_TIMEOUT_S
    while everyone - set(server.cache.get("read", {})) and time.monotonic() < deadline:
        time.sleep(0.02)


def _report_to_rank_0(topology: Topology, address: str, port: int, deadline: float) -> None:
    reported = False
    while time.monotonic() < deadline:
        try:
            if not reported:
                reported = _request("PUT", address, port, f"/started/{topology.rank}") == 200
            elif _request("GET", address, port, "/all/started") == 200:
                with suppress(OSError):
                    _request("PUT", address, port, f"/read/{topology.rank}")
                return
        except OSError:  # rank 0 has not started yet, or has exited
            if reported:
                break
        time.sleep(0.1)
    what = "exited before all ranks had started" if reported else "did not start in time or is unreachable"
    raise TopologyError(f"rank {topology.rank} stops: rank 0 at {address}:{port} {what}.")


def _request(method: str, address: str, port: int, path: str) -> int:
    """Return the status of an HTTP request sent without a proxy. Raises OSError."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request(method, path, body=b"yes" if method == "PUT" else None)
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise ConnectionError from error
    finally:
        connection.close()

"""Start Horovod in ranks that srun, torchrun or the program itself started: no MPI and no horovodrun needed.

Horovod's ranks find each other through a small HTTP server that horovodrun normally runs. Here rank 0 runs it
in a thread, at the coordinator's address. Under mpirun Horovod asks MPI, under horovodrun it is told: nothing
to do.
"""

from __future__ import annotations

import fcntl
import http.client
import importlib
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from src.distributed.discover import Topology
from src.distributed.framework_env import horovod_environment
from src.distributed.horovod_install import horovod_problem
from src.distributed.listening import listen, meeting_address
from src.errors import ConfigError, ProjectError, TopologyError

START_TIMEOUT = 300.0
"""Seconds until all ranks must have started: a full file server can make the imports of some very slow."""

BROKEN_COLLECTIVE = re.compile(r"Horovod has been shut down|gloo/transport/")
"""What Horovod, or Gloo within it, says where an exchange broke off."""


def import_horovod(framework: str) -> Any:
    """`horovod.torch` or `horovod.tensorflow`; ConfigError where the build is missing or does not fit."""
    problem = horovod_problem(framework)
    if problem:
        raise ConfigError(problem)
    # What Horovod does when ranks wait for one that does not come: speak, then end with an error.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "30")
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600")
    return importlib.import_module(f"horovod.{framework}")


def start_horovod(topology: Topology, hvd: Any, timeout: float = START_TIMEOUT) -> None:
    """Initialise `hvd` (what `import_horovod` returned), once.

    Raises:
        TopologyError: where ranks don't find each other, or Horovod counts them differently.
    """
    if hvd.is_initialized():
        return
    if topology.source == "mpirun" and not hvd.mpi_built():
        raise TopologyError(
            "this Horovod was built without MPI, so ranks of mpirun don't find each other: load or install "
            "an MPI (mpicxx) and run `make horovod`, or use launch=horovodrun or launch=srun."
        )
    if topology.source in ("mpirun", "horovodrun"):
        hvd.init()
    else:
        _init_by_gloo(topology, hvd, timeout)
    if (hvd.rank(), hvd.size()) != (topology.rank, topology.world_size):
        raise TopologyError(
            f"{topology.source} made this rank {topology.rank} of {topology.world_size}, Horovod takes it "
            f"for rank {hvd.rank()} of {hvd.size()}: the variables of two starts are mixed."
        )


@contextmanager
def explaining_lost_ranks(topology: Topology) -> Iterator[None]:
    """Turns the error of an exchange that broke off into one sentence; TensorFlow wraps it in its own."""
    try:
        yield
    except Exception as error:
        if not BROKEN_COLLECTIVE.search(str(error)):
            raise
        raise lost_rank_error(topology) from error


def lost_rank_error(topology: Topology) -> ProjectError:
    """What to tell when an exchange broke off."""
    starter = {"local": "the program", "none": "its starter"}.get(topology.source, topology.source)
    return ProjectError(
        f"rank {topology.rank} of {topology.world_size} ends, because another rank ended, can't be reached "
        f"or did not come in time: the messages of {starter} and of Horovod name it."
    )


def _init_by_gloo(topology: Topology, hvd: Any, timeout: float) -> None:
    variables = horovod_environment(topology)
    address = socket.gethostbyname(meeting_address(topology))
    # torchrun itself listens on the coordinator's port
    port = topology.coordinator_port + (topology.source == "torchrun")
    if topology.world_size > 1:
        variables |= {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
        _gather_ranks(topology, address, port, timeout)
    interface = interface_towards(address)
    if interface and "HOROVOD_GLOO_IFACE" not in os.environ:
        variables["HOROVOD_GLOO_IFACE"] = interface  # else Gloo asks how the host's own name resolves
    with _variables(variables):
        hvd.init()


@contextmanager
def _variables(variables: dict[str, str]) -> Iterator[None]:
    """Set them for Horovod's start only: to any later reader, they would look like a start by horovodrun."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def interface_towards(address: str) -> str | None:
    """Name of the network interface on the way to an IPv4 address; None where this can't be found out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing, but chooses the way
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if _address_of(probe, name) == own:
                    return name
        except OSError:
            return None
    return None


def _address_of(probe: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface[:15].encode())
    try:
        answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR, netdevice(7)
    except OSError:  # an interface without an address
        return None
    return socket.inet_ntoa(answer[20:24])


# --- all ranks meet before Horovod starts, because it waits 30 s only and does not say for whom ----------


def _gather_ranks(topology: Topology, address: str, port: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    if topology.rank == 0:
        _await_ranks(_serve(topology, port), topology.world_size, deadline, timeout)
    else:
        _report_to_rank_0(topology, address, port, deadline)


def _serve(topology: Topology, port: int) -> Any:
    """Horovod's own key-value server, in a thread that ends with the process; it knows no token, see `listen`."""
    http_server = importlib.import_module("horovod.runner.http.http_server")

    class Server(http_server.RendezvousHTTPServer):  # type: ignore[misc, name-defined]
        socket: Any
        daemon_threads = True
        request_queue_size = 1024  # many ranks come at once

        def server_bind(self) -> None:
            """On the address that the other ranks come to."""
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
            names = ", ".join(sorted(missing, key=int))
            raise TopologyError(f"of {world_size} ranks these did not start within {timeout:.0f} s: {names}.")
        time.sleep(0.05)
    with server.cache_lock:
        server.cache["all"] = {"started": b"yes"}


def _report_to_rank_0(topology: Topology, address: str, port: int, deadline: float) -> None:
    reported = False
    while time.monotonic() < deadline:
        try:
            if not reported:
                reported = _request("PUT", address, port, f"/started/{topology.rank}") == 200
            elif _request("GET", address, port, "/all/started") == 200:
                return
        except OSError:  # not there yet, or not there any more
            if reported:
                break
        time.sleep(0.1)
    what = "ended before all ranks had started" if reported else "did not start in time, or can't be reached"
    raise TopologyError(f"rank {topology.rank} ends, because rank 0 at {address}:{port} {what}.")


def _request(method: str, address: str, port: int, path: str) -> int:
    """Status of an HTTP request, which no proxy may see."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request(method, path, body=b"yes" if method == "PUT" else None)
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise ConnectionError from error
    finally:
        connection.close()

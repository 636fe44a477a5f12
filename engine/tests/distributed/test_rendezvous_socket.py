"""Who listens where: a run of one machine on loopback only."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from train_anywhere.distributed.network.addresses import listen, rendezvous_address
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError
from train_anywhere.files import ROOT

OWN = socket.gethostbyname(socket.gethostname())


def two_nodes(address: str) -> Topology:
    return Topology(world_size=2, nodes=2, coordinator_address=address)


@pytest.mark.parametrize(
    ("topology", "where"),
    [
        (Topology(world_size=2, local_world_size=2, coordinator_address="node1.example.org"), "127.0.0.1"),
        (two_nodes(OWN), "0.0.0.0" if OWN.startswith("127.") else OWN),
        (two_nodes("localhost"), "0.0.0.0"),
        (two_nodes("192.0.2.1"), "0.0.0.0"),
    ],
)
def test_rank_0_listens_where_the_others_come(topology: Topology, where: str) -> None:
    with listen(topology, 0) as listener:
        assert listener.getsockname()[0] == where


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with listen(Topology(), 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(TopologyError, match=rf"port {port} of rank 0's node.*: export MASTER_PORT="):
            listen(Topology(), port)


def test_the_others_meet_at_the_coordinator() -> None:
    assert rendezvous_address(two_nodes("a")) == "a"


def listening(program: psutil.Process) -> set[str]:
    """Addresses on which a program and its children listen now."""
    found = set()
    for process in [program, *program.children(recursive=True)]:
        try:
            found |= {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
        except psutil.Error:  # it has ended
            continue
    return found


@pytest.mark.new_process  # ranks are looked for among its children
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "horovod"])
def test_ranks_of_this_machine_listen_on_loopback_only(
    strategy: str, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    if strategy == "horovod":
        problem = horovod_problem("lightning")
        require(problem is None, str(problem))
    words = [f"strategy={strategy}", "model=mlp", "trainer.max_epochs=1", f"paths.results={tmp_path}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, "trainer.accelerator=cpu"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "trainer.devices=2"], env=environ, stdout=subprocess.DEVNULL) as program:
        seen: set[str] = set()
        while program.poll() is None:
            seen |= listening(psutil.Process(program.pid))
            time.sleep(0.05)
    assert program.returncode == 0
    assert seen == {"127.0.0.1"}

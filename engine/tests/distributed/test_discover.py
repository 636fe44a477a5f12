"""Every launcher's variables, as recorded from real ones (Slurm 22.05, Open MPI 4.1,
Horovod 0.28).

`environments/NAME.env` holds the variables of all ranks, one block per rank in the order of the ranks.
"""

from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.distributed.discover import discover, job_port
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError

ENVIRONMENTS = Path(__file__).with_name("environments")


def recorded(name: str) -> list[dict[str, str]]:
    blocks = (ENVIRONMENTS / f"{name}.env").read_text().strip().split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines()) for block in blocks]


# rank, local rank, node rank, local world size of every rank
EVEN = [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2)]
TWO_ONE = [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1)]
ONE_TWO = [(0, 0, 0, 1), (1, 0, 1, 2), (2, 1, 1, 2)]
ONE_NODE = [(0, 0, 0, 2), (1, 1, 0, 2)]

CASES = {
    "srun-2x2": ("srun", EVEN, "node1:2,node2:2"),
    "srun-pmix-2x2": ("srun", EVEN, "node1:2,node2:2"),
    "srun-2+1": ("srun", TWO_ONE, "node1:2,node2:1"),
    "torchrun-srun-2x2": ("torchrun", EVEN, "node1:2,node2:2"),
    "torchrun-one-node": ("torchrun", ONE_NODE, ""),
    "mpirun-sbatch-2x2": ("mpirun", EVEN, "node1:2,node2:2"),
    "mpirun-sbatch-2+1": ("mpirun", TWO_ONE, "node1:2,node2:1"),
    "mpirun-one-node": ("mpirun", ONE_NODE, ""),
    "horovodrun-mpi-1+2": ("mpirun", ONE_TWO, "node1:1,node2:2"),
    "horovodrun-gloo-one-node": ("horovodrun", ONE_NODE, ""),
    "horovodrun-gloo-1+2": ("horovodrun", ONE_TWO, "node1:1,node2:2"),
    "sbatch-shell": ("none", [(0, 0, 0, 1)], "node1:2,node2:2"),
    "salloc-shell": ("none", [(0, 0, 0, 1)], ""),
    "salloc-interactive-step": ("none", [(0, 0, 0, 1)], ""),
}


def places(topologies: list[Topology]) -> list[tuple[int, int, int, int]]:
    return [(t.rank, t.local_rank, t.node_rank, t.local_world_size) for t in topologies]


def in_job(name: str, hosts: str = "") -> list[dict[str, str]]:
    """The ranks with the variables that the batch script exports."""
    exported = {"TRAIN_HOSTS": hosts or CASES[name][2], "MASTER_ADDR": "node1", "MASTER_PORT": "12000"}
    return [{**exported, **env} for env in recorded(name)]


def test_every_recorded_environment():
    assert {path.stem for path in ENVIRONMENTS.iterdir()} == {*CASES}
    for name, (launcher, expected, hosts) in CASES.items():
        topologies = [discover(env) for env in (in_job(name) if hosts else recorded(name))]
        assert places(topologies) == expected, name
        nodes = expected[-1][2] + 1
        shared = {(t.launched_by, t.world_size, t.nodes) for t in topologies}
        assert shared == {(launcher, len(expected), nodes)}, name
        assert len({t.coordinator_port for t in topologies}) == 1, name
        address = {"torchrun-one-node": "localhost"}.get(name, "node1" if nodes > 1 else "127.0.0.1")
        assert {t.coordinator_address for t in topologies} == {address}, name
        layout = [(one.rpartition(":")[0], int(one[-1])) for one in hosts.split(",")] if nodes > 1 else []
        assert all(t.layout() == (layout or [(address, len(expected))]) for t in topologies), name


def test_no_launcher_means_rank_0_of_1():
    assert discover({}) == Topology()
    assert Topology().layout() == [("127.0.0.1", 1)]


def test_own_local_ranks():
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321"}
    topologies = [discover({**shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)]
    assert places(topologies) == ONE_NODE
    assert {(t.launched_by, t.nodes, t.coordinator_port) for t in topologies} == {("local", 1, 4321)}


def test_own_local_ranks_inside_a_job_are_not_where_the_job_is():
    env = recorded("sbatch-shell")[0] | {"TRAIN_HOSTS": "node1:1,node2:1"}
    env |= {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    t = discover({**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321"})
    assert (t.launched_by, t.nodes, t.layout()) == ("local", 1, [("127.0.0.1", 2)])


@pytest.mark.parametrize("name", ["srun-2+1", "mpirun-sbatch-2+1", "torchrun-srun-2x2"])
def test_several_nodes_without_a_list_of_their_hosts_are_refused(name):
    with pytest.raises(TopologyError, match=r"export TRAIN_HOSTS=node1:2,node2:1"):
        discover({**recorded(name)[2], "MASTER_ADDR": "node1", "MASTER_PORT": "1"}).layout()


def test_hosts_of_the_whole_job_are_not_those_of_fewer_ranks():
    env = recorded("mpirun-one-node")[0] | {"TRAIN_HOSTS": "node1:2,node2:2"}
    assert discover(env).layout() == [("127.0.0.1", 2)]


def test_ports_of_neighbouring_jobs_steps_and_restarts_differ():
    starts = [(job, step, again) for job in range(5000, 5100) for step in range(3) for again in range(2)]
    ports = {job_port(*start) for start in starts}
    assert len(ports) == len(starts)
    assert all(10000 <= port <= 30000 - 16 and port % 16 == 0 for port in ports)


WRONG = {
    "rank beyond the world": ("srun-2x2", {"SLURM_PROCID": "9"}, "rank 9, local rank 0, which does not fit"),
    "local rank beyond the node": ("srun-2+1", {"SLURM_LOCALID": "2"}, r"local rank 2, .* \[2, 1\]: export"),
    "node beyond the others": ("torchrun-srun-2x2", {"GROUP_RANK": "2"}, "node 2 of 2: variables of two"),
    "not a number": ("torchrun-one-node", {"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a whole number"),
    "a digit that is not a number": ("torchrun-one-node", {"RANK": "²"}, "RANK=² is not a whole number"),
    "digits of another script": ("torchrun-one-node", {"RANK": "٣"}, "RANK=٣ is not a whole number"),
    "a very long number": ("torchrun-one-node", {"RANK": "9" * 5000}, "is not a whole number"),
    "hosts with odd ranks": ("srun-2x2", {"TRAIN_HOSTS": "node1:²"}, "not a list"),
    "address missing": ("srun-2x2", {"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
    "port missing": ("srun-2x2", {"MASTER_PORT": ""}, "MASTER_PORT is not set"),
    "every node waits for itself": ("srun-2x2", {"MASTER_ADDR": "localhost"}, "wait for itself"),
    "ranks by turns": ("mpirun-sbatch-2x2", {"TRAIN_HOSTS": "node1:1,node2:3"}, "one node after another"),
    "hosts without ranks": ("srun-2x2", {"TRAIN_HOSTS": "node1,node2"}, "not a list"),
    "another MPI": ("sbatch-shell", {"PMI_RANK": "1", "PMI_SIZE": "2"}, "process 1 of 2 of an MPI other"),
    "half of torchrun": ("sbatch-shell", {"RANK": "1", "WORLD_SIZE": "2"}, "without LOCAL_RANK"),
}


def test_each_contradiction_gets_one_sentence():
    for recording, changed, message in WRONG.values():
        with pytest.raises(TopologyError, match=message) as error:
            discover(in_job(recording)[0] | changed)
        assert "\n" not in str(error.value)


def test_import_is_light():
    code = (
        "import sys, train_anywhere.distributed.horovod.initialize as h; h.horovod_problem('torch')\n"
        "print({'numpy', 'omegaconf', 'torch', 'horovod'} & {*sys.modules})"
    )
    root = Path(__file__).resolve().parents[3]
    run = run_python("-c", code, cwd=root, check=True)
    assert run.stdout == "set()\n"

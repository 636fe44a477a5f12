"""Every launcher's variables, as recorded from real ones (Slurm 22.05, Open MPI 4.1,
Horovod 0.28).

`environments/NAME.env` holds the variables of all ranks, one block per rank in the order of the ranks.
"""

import subprocess
import sys
from pathlib import Path

import pytest

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
    "srun-2x2": ("srun", EVEN, 2, "node1"),
    "srun-pmix-2x2": ("srun", EVEN, 2, "node1"),
    "srun-2+1": ("srun", TWO_ONE, 2, "node1"),
    "torchrun-srun-2x2": ("torchrun", EVEN, 2, "node1"),
    "torchrun-one-node": ("torchrun", ONE_NODE, 1, "localhost"),
    "mpirun-sbatch-2x2": ("mpirun", EVEN, 2, "node1"),
    "mpirun-sbatch-2+1": ("mpirun", TWO_ONE, 2, "node1"),
    "mpirun-one-node": ("mpirun", ONE_NODE, 1, "127.0.0.1"),
    "horovodrun-mpi-1+2": ("mpirun", ONE_TWO, 2, "10.99.0.1"),
    "horovodrun-gloo-one-node": ("horovodrun", ONE_NODE, 1, "127.0.0.1"),
    "sbatch-shell": ("none", [(0, 0, 0, 1)], 1, "127.0.0.1"),
    "salloc-shell": ("none", [(0, 0, 0, 1)], 1, "127.0.0.1"),
    "salloc-interactive-step": ("none", [(0, 0, 0, 1)], 1, "127.0.0.1"),
}


def places(topologies: list[Topology]) -> list[tuple[int, int, int, int]]:
    return [(t.rank, t.local_rank, t.node_rank, t.local_world_size) for t in topologies]


def test_every_recorded_environment():
    assert {path.stem for path in ENVIRONMENTS.iterdir()} == {*CASES, "horovodrun-gloo-1+2"}
    for name, (launcher, expected, nodes, address) in CASES.items():
        topologies = [discover(env) for env in recorded(name)]
        assert places(topologies) == expected, name
        shared = {(t.launched_by, t.world_size, t.nodes, t.coordinator_address) for t in topologies}
        assert shared == {(launcher, len(expected), nodes, address)}, name
        assert len({t.coordinator_port for t in topologies}) == 1, name


def test_uneven_horovodrun_needs_the_hosts():
    """The cross rank counts only nodes with the local rank: the last rank sees 0 of 1."""
    ranks = recorded("horovodrun-gloo-1+2")
    assert (ranks[2]["HOROVOD_CROSS_RANK"], ranks[2]["HOROVOD_CROSS_SIZE"]) == ("0", "1")
    with pytest.raises(TopologyError, match="TRAIN_HOSTS"):
        discover(ranks[2])
    topologies = [discover({**env, "TRAIN_HOSTS": "node1:1,node2:2"}) for env in ranks]
    assert places(topologies) == ONE_TWO
    assert {(t.nodes, t.coordinator_address) for t in topologies} == {(2, "node1")}


def test_no_launcher_means_rank_0_of_1():
    assert discover({}) == Topology()
    assert Topology().layout() == [("127.0.0.1", 1)]


def test_torchrun_variables_of_uneven_nodes():
    env = {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3",
           "MASTER_ADDR": "gpu01", "MASTER_PORT": "10000", "TRAIN_HOSTS": "gpu01:1,gpu02:2,gpu03:1"}  # fmt: skip
    t = discover(env)
    assert t == Topology(3, 1, 1, 4, 2, 3, "gpu01", 10000, "local", "gpu01,gpu02,gpu03", "1,2,1")
    assert t.layout() == [("gpu01", 1), ("gpu02", 2), ("gpu03", 1)]


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


@pytest.mark.parametrize("name", ["srun-2+1", "mpirun-sbatch-2+1"])
def test_layout_of_uneven_nodes(name):
    t = discover({**recorded(name)[2], "TRAIN_HOSTS": "node1:2,node2:1"})
    assert t.layout() == [("node1", 2), ("node2", 1)]
    assert t.hosts() == ["node1", "node2"]


def test_layout_of_torchrun_is_that_of_its_step():
    assert discover(recorded("torchrun-srun-2x2")[3]).layout() == [("node1", 2), ("node2", 2)]


def test_layout_that_is_unknown_is_an_error():
    t = discover(recorded("mpirun-sbatch-2+1")[2])
    with pytest.raises(TopologyError, match=r"hosts are unknown: export TRAIN_HOSTS=.*3 in all"):
        t.layout()


def test_hosts_of_the_whole_job_are_not_those_of_fewer_ranks():
    env = recorded("mpirun-one-node")[0] | {"TRAIN_HOSTS": "node1:2,node2:2"}
    assert discover(env).layout() == [("127.0.0.1", 2)]


def test_node_file_of_pbs(tmp_path):
    """Names and places of the ranks come from the node file, one line per slot."""
    (tmp_path / "nodes").write_text("gpu01\ngpu01\ngpu02\n")
    pbs = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "1234.server"}
    ranks = [{k: v for k, v in e.items() if "SLURM" not in k} | pbs for e in recorded("mpirun-sbatch-2+1")]
    topologies = [discover(env) for env in ranks]
    assert places(topologies) == TWO_ONE
    assert topologies[2].layout() == [("gpu01", 2), ("gpu02", 1)]
    assert {t.coordinator_address for t in topologies} == {"gpu01"}
    other = discover({**ranks[0], "PBS_JOBID": "1235.server"})
    assert other.coordinator_port != topologies[0].coordinator_port


def test_mpirun_without_any_list_finds_the_host_of_rank_0():
    env = {k: v for k, v in recorded("mpirun-sbatch-2x2")[3].items() if "SLURM" not in k}
    assert discover(env).coordinator_address == "10.99.0.1"
    del env["OMPI_MCA_orte_hnp_uri"]
    with pytest.raises(TopologyError, match="export MASTER_ADDR"):
        discover(env)


def test_leading_zeros_are_part_of_the_name():
    env = recorded("srun-2x2")[3] | {"SLURM_STEP_NODELIST": "gpu[0012-0013]"}
    assert discover(env).coordinator_address == "gpu0012"


def test_address_and_port_can_be_given():
    env = recorded("srun-2x2")[1] | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "777"}
    t = discover(env)
    assert (t.coordinator_address, t.coordinator_port) == ("10.0.0.7", 777)


def test_ports_of_neighbouring_jobs_steps_and_restarts_differ():
    starts = [(job, step, again) for job in range(5000, 5100) for step in range(3) for again in range(2)]
    ports = {job_port(*start) for start in starts}
    assert len(ports) == len(starts)
    assert all(10000 <= port <= 30000 - 16 and port % 16 == 0 for port in ports)


WRONG = {
    "rank beyond the world": ("srun-2x2", {"SLURM_PROCID": "9"}, "rank 9 of 4"),
    "local rank beyond the node": ("srun-2+1", {"SLURM_LOCALID": "2"}, "local rank 2 of 2"),
    "node beyond the list": ("srun-2x2", {"SLURM_NODEID": "2"}, "SLURM_NODEID=2"),
    "not a number": ("torchrun-one-node", {"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a whole number"),
    "a digit that is not a number": ("torchrun-one-node", {"RANK": "²"}, "RANK=² is not a whole number"),
    "digits of another script": ("torchrun-one-node", {"RANK": "٣"}, "RANK=٣ is not a whole number"),
    "a very long number": ("torchrun-one-node", {"RANK": "9" * 5000}, "is not a whole number"),
    "hosts with odd ranks": ("srun-2x2", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                            "LOCAL_WORLD_SIZE": "1", "TRAIN_HOSTS": "node1:²"}, "not a list"),
    "address missing": ("torchrun-one-node", {"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
    "every node waits for itself": ("srun-2x2", {"MASTER_ADDR": "localhost"}, "wait for itself"),
    "ranks by turns": ("mpirun-sbatch-2x2", {"TRAIN_HOSTS": "node1:1,node2:3"}, "one node after another"),
    "hosts without ranks": ("srun-2x2", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                            "LOCAL_WORLD_SIZE": "1", "TRAIN_HOSTS": "node1,node2"}, "not a list"),
    "another MPI": ("sbatch-shell", {"PMI_RANK": "1", "PMI_SIZE": "2"}, "process 1 of 2 of an MPI other"),
    "half of torchrun": ("sbatch-shell", {"RANK": "1", "WORLD_SIZE": "2"}, "without LOCAL_RANK"),
}  # fmt: skip


def test_each_contradiction_gets_one_sentence():
    for recording, changed, message in WRONG.values():
        with pytest.raises(TopologyError, match=message) as error:
            discover(recorded(recording)[0] | changed)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("tasks", "agents"), [("4", "2"), ("2", "1")], ids=["twice a node", "each alone"])
def test_torchrun_started_by_plain_srun_is_refused(tasks, agents):
    changed = {"GROUP_WORLD_SIZE": agents, "SLURM_STEP_NUM_TASKS": tasks}
    env = recorded("torchrun-srun-2x2")[0] | changed
    with pytest.raises(TopologyError, match="once per node, srun --ntasks=2 --ntasks-per-node=1 torchrun"):
        discover(env)


def test_import_is_light():
    code = "import sys, train_anywhere.distributed.horovod.initialize; print('numpy' in sys.modules, 'omegaconf' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]

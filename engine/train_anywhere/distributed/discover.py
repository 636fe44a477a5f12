"""Read the topology from the environment variables that the launcher of this process set.

    launcher    identified by                                   reference
    torchrun    TORCHELASTIC_RUN_ID and those of local          pytorch.org/docs/stable/elastic/run.html
    local       RANK, WORLD_SIZE, LOCAL_RANK                    launch/processes.py
    horovodrun  HOROVOD_RANK, HOROVOD_SIZE                      horovod/runner/gloo_run.py
    mpirun      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE      docs.open-mpi.org, environment variables
    srun        SLURM_PROCID, SLURM_STEP_ID                     slurm.schedmd.com/srun.html
    none        none of these: rank 0 of 1

The first match wins: a launcher may run in a task of srun, as the daemons of mpirun do, and the shell of a batch job has
SLURM_PROCID=0 without being a task. The batch script exports MASTER_ADDR, MASTER_PORT and TRAIN_HOSTS, `node1:2,node2:1`
(host:ranks in rank order), because only srun passes the hosts of all ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.distributed.topology import EXAMPLE, Topology
from train_anywhere.errors import TopologyError

Environ = Mapping[str, str]

VARIABLES = {
    "local": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
}  # fmt: skip
"""Variables of each launcher with the rank, the number of ranks, and both on this node. srun has no single number for the last."""


def find_launcher(env: Environ) -> tuple[str, int, int]:
    """Return the launcher, the rank and the number of ranks: none, 0 and 1 without one. Raises TopologyError."""
    given = {
        "local": all(name in env for name in VARIABLES["local"][:3]),
        **{name: all(one in env for one in VARIABLES[name][:2]) for name in ("horovodrun", "mpirun")},
        # steps from 0xfffffff0 on are the shells of batch jobs and salloc
        "srun": {"SLURM_PROCID", "SLURM_STEP_ID"} <= {*env}
        and read_number(env, "SLURM_STEP_ID") < 0xFFFFFFF0,
    }
    if name := next((name for name, found in given.items() if found), ""):
        rank, world = (read_number(env, variable) for variable in VARIABLES[name][:2])
        return "torchrun" if name == "local" and "TORCHELASTIC_RUN_ID" in env else name, rank, world
    if env.get("PMI_SIZE", "1") != "1":
        raise TopologyError(
            f"this is process {env.get('PMI_RANK', '?')} of {env['PMI_SIZE']} of an MPI other than Open MPI, "
            "which is not supported: use the mpirun of Open MPI, or launch=srun."
        )
    if "RANK" in env and env.get("WORLD_SIZE", "1") != "1":
        raise TopologyError(
            f"RANK={env['RANK']} and WORLD_SIZE={env['WORLD_SIZE']} are set without LOCAL_RANK: export "
            "LOCAL_RANK and LOCAL_WORLD_SIZE too, or unset RANK."
        )
    return "none", 0, 1


def discover(env: Environ = os.environ) -> Topology:
    """Read the topology from `env`. Raises TopologyError if variables contradict or are missing."""
    launcher, rank, world = find_launcher(env)
    if launcher == "none":
        return Topology()
    *_, local_rank_of, local_of = VARIABLES["local" if launcher == "torchrun" else launcher]
    local_rank, hosts = read_number(env, local_rank_of), train_hosts(env, world)
    local = read_number(env, local_of) if local_of else 0  # 0: all ranks, or as TRAIN_HOSTS has it
    node, nodes = 0, 1
    if launcher == "torchrun":
        node, nodes = read_number(env, "GROUP_RANK"), read_number(env, "GROUP_WORLD_SIZE")
    elif local != world and (local or read_number(env, "SLURM_STEP_NUM_NODES", 1) > 1):
        node, local = _find_node(hosts, rank, local_rank, local, launcher)
        nodes = len(hosts)
    several = nodes > 1
    address = read_string(env, "MASTER_ADDR") if several else env.get("MASTER_ADDR") or "127.0.0.1"
    port = read_number(env, "MASTER_PORT", None if several else 0)
    place = (rank, local_rank, node, world, local or world, nodes)
    return _check(Topology(*place, address, port, launcher, hosts if several else ()))


def _find_node(
    hosts: Sequence[tuple[str, int]], rank: int, local_rank: int, local: int, launcher: str
) -> tuple[int, int]:
    """Return the number of a rank's node, and of the ranks there. Raises TopologyError if ranks do not fill nodes."""
    first = 0
    for node, (_, count) in enumerate(hosts):
        if first <= rank < first + count and local_rank == rank - first and local in (0, count):
            return node, count
        first += count
    raise TopologyError(
        f"{launcher} made this rank {rank}, local rank {local_rank}{f' of {local}' if local else ''}, which does not fit "
        f"the ranks per node {[count for _, count in hosts]}: export {EXAMPLE} and let ranks fill one node after another."
    )


def _check(t: Topology) -> Topology:
    """Return the topology. Raises TopologyError if its numbers contradict each other."""
    pairs = (
        (t.rank, t.world_size, "rank"),
        (t.local_rank, t.local_world_size, "local rank"),
        (t.node_rank, t.nodes, "node"),
    )
    for value, size, what in pairs:
        if not 0 <= value < size:
            raise TopologyError(
                f"{t.launched_by} set {what} {value} of {size}: variables of two launchers are mixed; unset those of one."
            )
    if t.nodes > 1 and re.fullmatch(r"localhost|127\..*|::1", t.coordinator_address):
        raise TopologyError(
            f"MASTER_ADDR={t.coordinator_address} would make each of {t.nodes} nodes wait for itself: unset "
            "it, or set it to the host of rank 0."
        )
    return t


def read_string(env: Environ, name: str) -> str:
    """Return the value of a variable that must be set."""
    if not env.get(name):
        raise TopologyError(
            f"{name} is not set, though other variables show that this process is one rank of several: start "
            f"the ranks with launch={'|'.join(LAUNCHERS)}, or unset the variables of an earlier launcher."
        )
    return env[name]


def read_number(env: Environ, name: str, default: int | None = None) -> int:
    """Return the value as a whole number. Without a `default` the variable must be set."""
    if default is not None and not env.get(name):
        return default
    value = read_string(env, name)
    if not re.fullmatch("[0-9]{1,18}", value):
        raise TopologyError(f"{name}={value} is not a whole number.")
    return int(value)


def job_port(job: int, step: int = 0, restart: int = 0) -> int:
    """Return the first of 16 TCP ports for a job.

    The ports are 10000 to 29999, below those that Linux gives to clients (32768 and above).
    """
    return 10000 + 16 * ((job + 389 * step + 617 * restart) % 1250)


def train_hosts(env: Environ, world_size: int) -> tuple[tuple[str, int], ...]:
    """Return hosts with their ranks: TRAIN_HOSTS=node1:2,node2:1 gives (("node1", 2), ("node2", 1)).

    Return () if it is not set, or lists another number of ranks (fewer ranks were started within the job).
    """
    text = env.get("TRAIN_HOSTS", "")
    pairs = [re.fullmatch("(.+):([0-9]{1,18})", part) for part in text.split(",") if part]
    if not all(pairs):
        raise TopologyError(f"TRAIN_HOSTS={text} is not a list such as node1:2,node2:1 (host:ranks).")
    hosts = tuple((pair[1], int(pair[2])) for pair in pairs if pair)
    return hosts if sum(count for _, count in hosts) == world_size else ()


def hosts_by_rank(train_hosts: str) -> dict[int, str]:
    """Return the host of each rank, from TRAIN_HOSTS (host:ranks,...), as far as it can be read."""
    pairs = re.findall(r"([^,]+):([0-9]+)(?:,|$)", train_hosts)
    return dict(enumerate(host for host, count in pairs for _ in range(int(count))))

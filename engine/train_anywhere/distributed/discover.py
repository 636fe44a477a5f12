"""Read the topology from the environment variables that the launcher of this process set.

    launcher    identified by                                   reference
    torchrun    TORCHELASTIC_RUN_ID and those of local          pytorch.org/docs/stable/elastic/run.html
    local       RANK, LOCAL_RANK, GROUP_RANK, WORLD_SIZE, ...   launch/processes.py
    horovodrun  HOROVOD_RANK, HOROVOD_CROSS_RANK, ...           horovod/runner/gloo_run.py
    mpirun      OMPI_COMM_WORLD_RANK, ...                       docs.open-mpi.org, environment variables
    srun        SLURM_PROCID, SLURM_STEP_NODELIST, ...          slurm.schedmd.com/srun.html
    none        none of these: rank 0 of 1

The first match wins: a launcher may run in a task of srun, as the daemons of mpirun do, and the shell of a batch job has
SLURM_PROCID=0 without being a task. The project's batch scripts export TRAIN_HOSTS, `node1:2,node2:1` (host:ranks in rank
order), because only srun passes the hosts of all ranks.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.distributed.topology import Topology, expand_hosts, expand_tasks
from train_anywhere.errors import TopologyError


def discover(environ: Environ | None = None) -> Topology:
    """Read the topology from `environ`. Raises TopologyError if variables contradict."""
    env = os.environ if environ is None else environ
    for matches, read in _LAUNCHERS:
        if matches(env):
            return _check(read(env))
    _refuse_unknown_launchers(env)
    return Topology()


# --- one reader per launcher ---------------------------------------------------------------------


def _has(*names: str) -> Callable[[Environ], bool]:
    return lambda env: all(name in env for name in names)


def _is_step(env: Environ) -> bool:
    """Return whether srun started this process."""
    # steps from 0xfffffff0 on are the shells of batch jobs and salloc
    return _has("SLURM_PROCID", "SLURM_STEP_ID")(env) and read_number(env, "SLURM_STEP_ID") < 0xFFFFFFF0


def _from_rank_variables(env: Environ) -> Topology:
    rank, world, local = (read_number(env, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    nodes = read_number(env, "GROUP_WORLD_SIZE", -(-world // max(local, 1)))
    launched_by = "local"
    if "TORCHELASTIC_RUN_ID" in env:
        launched_by = "torchrun"
        _refuse_several_torchruns(env, nodes)
    node_list, tasks = train_hosts(env, world)
    if not node_list and _is_step(env) and world == nodes * local:
        node_list, tasks = read_string(env, "SLURM_STEP_NODELIST"), f"{local}(x{nodes})"
    if nodes == 1:
        node_list = tasks = ""
    local_rank, node = read_number(env, "LOCAL_RANK"), read_number(env, "GROUP_RANK", rank // max(local, 1))
    address, port = read_string(env, "MASTER_ADDR"), read_number(env, "MASTER_PORT")
    return Topology(rank, local_rank, node, world, local, nodes, address, port, launched_by, node_list, tasks)


def _from_horovodrun(env: Environ) -> Topology:
    rank, world = read_number(env, "HOROVOD_RANK"), read_number(env, "HOROVOD_SIZE")
    local_rank, local = read_number(env, "HOROVOD_LOCAL_RANK"), read_number(env, "HOROVOD_LOCAL_SIZE")
    cross, cross_size = read_number(env, "HOROVOD_CROSS_RANK"), read_number(env, "HOROVOD_CROSS_SIZE")
    node_list, tasks = train_hosts(env, world)
    # Horovod's cross rank counts only the nodes that have this local rank; every node has local rank 0.
    if local_rank == 0 or local * cross_size == world:
        node, nodes = cross, cross_size
    else:
        counts = expand_tasks(tasks or "0")
        node, nodes = find_node(counts, rank, local_rank, local, "horovodrun"), len(counts)
    default = env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "") if nodes > 1 else "127.0.0.1"
    address = env.get("MASTER_ADDR") or (expand_hosts(node_list)[0] if node_list else default)
    port = read_port(env, env.get("HOROVOD_GLOO_RENDEZVOUS_PORT", ""))
    return Topology(
        rank, local_rank, node, world, local, nodes, address, port, "horovodrun", node_list, tasks
    )


def _from_mpirun(env: Environ) -> Topology:
    rank, world = read_number(env, "OMPI_COMM_WORLD_RANK"), read_number(env, "OMPI_COMM_WORLD_SIZE")
    local_rank = read_number(env, "OMPI_COMM_WORLD_LOCAL_RANK")
    local = read_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    node_list, tasks = train_hosts(env, world)
    if not node_list:
        node_list, tasks = pbs_hosts(env, world)
    if node_list:
        counts = expand_tasks(tasks)
        node, nodes = find_node(counts, rank, local_rank, local, "mpirun"), len(counts)
    else:
        # Open MPI numbers its daemons, one per node; OMPI_COMM_WORLD_NODE_RANK is a number within the node.
        daemon = re.search(r"[.@](\d+);", env.get("PMIX_SERVER_URI2", ""))
        nodes = read_number(env, "OMPI_MCA_orte_num_nodes", -(-world // max(local, 1)))
        node = int(daemon[1]) if daemon else rank // max(local, 1)
    address, port = _mpi_coordinator(env, nodes, node_list), read_port(env, env.get("PMIX_NAMESPACE", ""))
    return Topology(rank, local_rank, node, world, local, nodes, address, port, "mpirun", node_list, tasks)


def _from_srun(env: Environ) -> Topology:
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or read_string(env, "SLURM_TASKS_PER_NODE")
    node_list = env.get("SLURM_STEP_NODELIST") or read_string(env, "SLURM_JOB_NODELIST")
    counts, node = expand_tasks(tasks), read_number(env, "SLURM_NODEID")
    if node >= len(counts):
        raise TopologyError(
            f"SLURM_NODEID={node}, but SLURM_STEP_TASKS_PER_NODE={tasks} has {len(counts)} nodes."
        )
    rank, local_rank = read_number(env, "SLURM_PROCID"), read_number(env, "SLURM_LOCALID")
    world, local, nodes = read_number(env, "SLURM_STEP_NUM_TASKS", sum(counts)), counts[node], len(counts)
    address = env.get("MASTER_ADDR") or (expand_hosts(node_list)[0] if nodes > 1 else "127.0.0.1")
    port = read_port(env, step=read_number(env, "SLURM_STEP_ID"))
    return Topology(rank, local_rank, node, world, local, nodes, address, port, "srun", node_list, tasks)


def _mpi_coordinator(env: Environ, nodes: int, node_list: str) -> str:
    """Return the host of rank 0: MASTER_ADDR, else the first one of the job, else mpirun's."""
    if env.get("MASTER_ADDR"):
        return env["MASTER_ADDR"]
    if nodes == 1:
        return "127.0.0.1"
    if node_list or env.get("SLURM_JOB_NODELIST"):
        return expand_hosts(node_list or env["SLURM_JOB_NODELIST"])[0]
    uri = re.search(r"tcp://([^,:;]+)", env.get("OMPI_MCA_orte_hnp_uri", ""))
    if not uri:
        raise TopologyError(
            "mpirun does not pass the host of rank 0: export MASTER_ADDR and start with mpirun -x MASTER_ADDR."
        )
    return uri[1]


_LAUNCHERS: tuple[tuple[Callable[[Environ], bool], Callable[[Environ], Topology]], ...] = (
    (_has("RANK", "WORLD_SIZE", "LOCAL_RANK"), _from_rank_variables),
    (_has("HOROVOD_RANK", "HOROVOD_SIZE"), _from_horovodrun),
    (_has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), _from_mpirun),
    (_is_step, _from_srun),
)


# --- contradictions ------------------------------------------------------------------------------


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


def _refuse_several_torchruns(env: Environ, nodes: int) -> None:
    """Raise TopologyError if srun started torchrun more than once per node."""
    if not _is_step(env):
        return
    started, hosts = read_number(env, "SLURM_STEP_NUM_TASKS"), read_number(env, "SLURM_STEP_NUM_NODES")
    if started > hosts or (nodes == 1 and started > 1):
        raise TopologyError(
            f"srun started torchrun {started} times on {hosts} nodes, and this torchrun has {nodes}: start "
            f"it once per node, srun --ntasks={hosts} --ntasks-per-node=1 torchrun --nnodes={hosts}."
        )


def _refuse_unknown_launchers(env: Environ) -> None:
    """Raise TopologyError for an unsupported launcher."""
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


Environ = Mapping[str, str]


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
    if not _is_number(value):
        raise TopologyError(f"{name}={value} is not a whole number.")
    return int(value)


def _is_number(value: str) -> bool:
    """Return whether a value has only ASCII digits: `isdigit` also accepts others, such as ²."""
    return value.isascii() and value.isdigit() and len(value) <= 18


def read_port(env: Environ, shared: str = "", step: int = 0) -> int:
    """Return MASTER_PORT, else a port derived from the job's id or from `shared`."""
    if "MASTER_PORT" in env:
        return read_number(env, "MASTER_PORT")
    if "SLURM_JOB_ID" in env:
        return job_port(read_number(env, "SLURM_JOB_ID"), step, read_number(env, "SLURM_RESTART_COUNT", 0))
    return job_port(zlib.crc32((env.get("PBS_JOBID") or shared).encode()))


def job_port(job: int, step: int = 0, restart: int = 0) -> int:
    """Return the first of 16 TCP ports for a job.

    The ports are 10000 to 29999, below those that Linux gives to clients (32768 and above).
    """
    return 10000 + 16 * ((job + 389 * step + 617 * restart) % 1250)


def train_hosts(env: Environ, world_size: int) -> tuple[str, str]:
    """Return hosts and ranks per host: TRAIN_HOSTS=node1:2,node2:1 gives ("node1,node2", "2,1").

    Return ("", "") if it is not set, or lists another number of ranks (fewer ranks were started within the job).
    """
    pairs = [part.rpartition(":") for part in env.get("TRAIN_HOSTS", "").split(",") if part]
    if not all(host and _is_number(tasks) for host, _, tasks in pairs):
        raise TopologyError(
            f"TRAIN_HOSTS={env['TRAIN_HOSTS']} is not a list such as node1:2,node2:1 (host:ranks)."
        )
    if sum(int(tasks) for _, _, tasks in pairs) != world_size:
        return "", ""
    return ",".join(host for host, _, _ in pairs), ",".join(tasks for _, _, tasks in pairs)


def pbs_hosts(env: Environ, world_size: int) -> tuple[str, str]:
    """Return the same as `train_hosts` from $PBS_NODEFILE, if it has one slot per rank."""
    file = Path(env.get("PBS_NODEFILE") or os.devnull)
    try:
        lines = file.read_text().split() if file.exists() else []
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise TopologyError(f"PBS_NODEFILE={file} can't be read ({why}).") from error
    if len(lines) != world_size:
        return "", ""
    hosts = list(dict.fromkeys(lines))
    return ",".join(hosts), ",".join(str(lines.count(host)) for host in hosts)


def find_node(tasks: list[int], rank: int, local_rank: int, local_world_size: int, launcher: str) -> int:
    """Return the number of a rank's node. Raises TopologyError if ranks do not fill nodes."""
    first = 0
    for node, count in enumerate(tasks):
        if first <= rank < first + count and (local_rank, local_world_size) == (rank - first, count):
            return node
        first += count
    raise TopologyError(
        f"{launcher} made this rank {rank}, local rank {local_rank} of {local_world_size}, which does not fit "
        f"the ranks per node {tasks}: export TRAIN_HOSTS=node1:2,node2:1 (host:ranks) and let ranks fill "
        "one node after another."
    )


def hosts_by_rank(train_hosts: str) -> dict[int, str]:
    """Return the host of each rank, from TRAIN_HOSTS (host:ranks,...), as far as it can be read."""
    found: dict[int, str] = {}
    for word in train_hosts.split(","):
        host, _, count = word.rpartition(":")
        if host and count.isdecimal():
            found |= {len(found) + n: host for n in range(int(count))}
    return found

"""The environment variables that a program finds: ranks for torch, Horovod and TensorFlow, and the folders of its run."""

import os
import socket
from importlib.util import find_spec
from pathlib import Path

from train_anywhere.distributed.horovod.initialize import gloo_variables
from train_anywhere.distributed.tf_config import tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError
from train_anywhere.files import ROOT, with_engine
from train_anywhere.runs.folder import RunDir

HOROVOD_PORT = 15
"""Port of Horovod's rendezvous after the coordinator's: each start of a job has 16 ports, and TensorFlow's workers use the first ones."""


def rank_variables(topology: Topology) -> dict[str, str]:
    """Return the variables of a rank for torch, TensorFlow and Horovod. Those that torchrun has set stay.

    Raises:
        TopologyError: Horovod is installed, and the ranks do not find each other.
    """
    t = topology
    found = {
        "RANK": t.rank,
        "WORLD_SIZE": t.world_size,
        "LOCAL_RANK": t.local_rank,
        "LOCAL_WORLD_SIZE": t.local_world_size,
        "NODE_RANK": t.node_rank,
        "MASTER_ADDR": t.coordinator_address,
        "MASTER_PORT": t.coordinator_port or _free_port(),
    }
    variables = {} if t.launched_by == "torchrun" else {name: str(value) for name, value in found.items()}
    variables["NODE_RANK"] = str(t.node_rank)
    if t.world_size > 1:
        variables |= _tensorflow(t) | _horovod(t)
    return variables


def _tensorflow(topology: Topology) -> dict[str, str]:
    """Return TF_CONFIG, which MultiWorkerMirroredStrategy reads; nothing if the hosts of the ranks are not known."""
    try:
        return {"TF_CONFIG": tf_config(topology, topology.rendezvous_port + 1)}
    except TopologyError:
        return {}


def _horovod(topology: Topology) -> dict[str, str]:
    """Return the variables for `hvd.init()`. mpirun and horovodrun bring their own."""
    if topology.launched_by in ("mpirun", "horovodrun") or find_spec("horovod") is None:
        return {}
    return {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "300"),
        **gloo_variables(topology, topology.coordinator_port + HOROVOD_PORT),
    }


def folder_variables(run: RunDir, local: Path | None) -> dict[str, str]:
    """Return the folders of the project and of the run; `local` is the rank's folder on its node's disk, None if there is none."""
    return {
        "PYTHONPATH": _python_path(),
        "TRAIN_RUN": str(run.path),
        "TRAIN_LOCAL_CHECKPOINTS": str(local or run.checkpoints),
        "TRAIN_PERSISTENT_CHECKPOINTS": str(run.checkpoints),
        "TRAIN_TENSORBOARD": str(run.tensorboard),
    }


def _python_path() -> str:
    """Return PYTHONPATH with the project in front, as in a job, where all of it is in one folder."""
    before = with_engine()["PYTHONPATH"].split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(ROOT), *before]))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])

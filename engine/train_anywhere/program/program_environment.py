"""The command, folder, environment and output of a program."""

import os
import pty
import re
import shlex
import signal
import sys
import termios
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from train_anywhere import ENVIRON
from train_anywhere.config.checks.program import (
    VALUE,
    choose_processes,
    is_file,
    launcher_of,
    locate,
)
from train_anywhere.config.keys import flatten
from train_anywhere.config.schema import Config
from train_anywhere.distributed.horovod.initialize import gloo_variables
from train_anywhere.distributed.layout import visible_gpus
from train_anywhere.distributed.network.addresses import free_port, tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError
from train_anywhere.features import Features
from train_anywhere.files import ROOT, with_engine
from train_anywhere.job.signals import end_with_parent
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import ON

HOROVOD_PORT = 15
"""Port of Horovod's rendezvous after the coordinator's: each start of a job has 16 ports, and TensorFlow's workers use the first ones."""

RANK_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""Variables that torchrun sets for each rank, besides those that start with TORCHELASTIC_."""

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

FOLDER = re.compile(r"\$\{?(TRAIN_(?:RUN|LOCAL_CHECKPOINTS|PERSISTENT_CHECKPOINTS|TENSORBOARD|METRICS))\b\}?")
"""Matches a variable of the run in an argument."""


def build_environment(config: Config, topology: Topology, run: RunDir, local: Path | None) -> dict[str, str]:
    """Return the environment of the program.

    `local` is the rank's folder on its node's disk, if there is one. Raises TopologyError if Horovod is installed, and the ranks do not
    find each other.
    """
    processes = choose_processes(config, topology.world_size)
    engines = {"TRAIN_PARENT", ON}  # the first is set for a rank, see launch/exits.py
    if topology.launched_by == "torchrun":
        engines |= {"PET_SIGNALS_TO_HANDLE", "TRAIN_ADDED", *ENVIRON.get("TRAIN_ADDED", "").split()}
        if processes != "rank":
            engines |= {*RANK_NAMES, *(name for name in ENVIRON if name.startswith("TORCHELASTIC_"))}
    environ = {name: value for name, value in ENVIRON.items() if name not in engines}
    python = str(Path(sys.executable).parent)
    others = [folder for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder != python]
    environ["PATH"] = os.pathsep.join([python, *others])
    if processes == "rank":
        environ |= rank_variables(topology)
    elif processes == "node" and topology.nodes > 1:
        environ |= node_variables(topology, config.program.command)
    if launcher_of(config.program.command) == "torchrun" and processes == "node":
        environ.setdefault("PET_NPROC_PER_NODE", str(node_devices(config)))
    if topology.world_size > 1:
        environ |= {name: os.environ[name] for name in INTERFACES if name in os.environ}
    if config.cluster.scheduler == "none":  # a job's script has exported them
        environ |= Features.of(config).unset_variables(environ)
    own = working_folder(config)
    modules = [*([str(own)] if own else []), str(ROOT), *with_engine(environ)["PYTHONPATH"].split(os.pathsep)]
    return environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules)),
        "TRAIN_RUN": str(run.path),
        "TRAIN_LOCAL_CHECKPOINTS": str(local or run.checkpoints),
        "TRAIN_PERSISTENT_CHECKPOINTS": str(run.checkpoints),
        "TRAIN_TENSORBOARD": str(run.tensorboard),
        "TRAIN_METRICS": os.devnull if topology.rank else str(run.path / "metrics.jsonl"),
    }


def rank_variables(topology: Topology) -> dict[str, str]:
    """Return the variables of a rank for torch, TensorFlow and Horovod.

    Those that torchrun has set stay. Raises TopologyError if Horovod is installed, and the ranks do not find each other.
    """
    t = topology
    found = {
        "RANK": t.rank,
        "WORLD_SIZE": t.world_size,
        "LOCAL_RANK": t.local_rank,
        "LOCAL_WORLD_SIZE": t.local_world_size,
        "NODE_RANK": t.node_rank,
        "MASTER_ADDR": t.coordinator_address,
        "MASTER_PORT": t.coordinator_port or free_port(),
    }
    variables = {} if t.launched_by == "torchrun" else {name: str(value) for name, value in found.items()}
    variables["NODE_RANK"] = str(t.node_rank)
    if t.world_size > 1:
        with suppress(TopologyError):  # the hosts of the ranks are not known
            variables["TF_CONFIG"] = tf_config(t, t.rendezvous_port + 1)
        if t.launched_by not in ("mpirun", "horovodrun") and find_spec("horovod"):  # those bring their own
            limit = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "300")
            variables |= {"HOROVOD_GLOO_TIMEOUT_SECONDS": limit}
            variables |= gloo_variables(t, t.coordinator_port + HOROVOD_PORT)
    return variables


def node_variables(topology: Topology, command: list[str]) -> dict[str, str]:
    """Return the variables of the only process of a node: a rank, or a launcher."""
    t = topology
    place = {"MASTER_ADDR": t.coordinator_address, "MASTER_PORT": str(t.rendezvous_port)}
    if not (launcher := launcher_of(command)):
        return rank_variables(t) | place
    found = {"NNODES": str(t.nodes), "NODE_RANK": str(t.node_rank)} | place
    # https://docs.pytorch.org/docs/stable/elastic/run.html: each option of torchrun is also read from PET_<OPTION>
    return found | ({f"PET_{k}": v for k, v in found.items()} if launcher == "torchrun" else {})


def node_devices(config: Config) -> int:
    """Return the number of devices of this node."""
    devices = config.trainer.devices
    return devices if isinstance(devices, int) else max(1, visible_gpus())


def launcher_arguments(topology: Topology, devices: int, command: list[str]) -> list[str]:
    """Return the command, with the options of `accelerate launch` that it lacks."""
    t = topology
    if launcher_of(command) != "accelerate" or t.nodes == 1:
        return command
    at = command.index("launch" if "launch" in command else "accelerate.commands.launch") + 1
    options = {
        "num_machines": t.nodes,
        "machine_rank": t.node_rank,
        "main_process_ip": t.coordinator_address,
        "main_process_port": t.rendezvous_port,
        "num_processes": t.nodes * devices,
    }
    names = (word.partition("=")[0] for word in command[at:] if word.startswith("--"))
    typed = {name.lstrip("-").replace("-", "_") for name in names}
    added = [word for k, v in options.items() if k not in typed for word in (f"--{k}", str(v))]
    return [*command[:at], *added, *command[at:]]


def working_folder(config: Config) -> Path | None:
    """Return the program's folder, or its copy in the code of a job. None: the current one."""
    if config.program.folder:
        return locate(config.program, config.program.folder)
    copied = config.program.copied
    return copy if copied and (copy := locate(config.program, copied)).is_relative_to(ROOT) else None


def build_command(config: Config, environ: dict[str, str], topology: Topology, again: bool) -> list[str]:
    """Return the command of the program. `again`: with `program.resume_args`."""
    program = config.program
    values = flatten(config.args)
    words = [VALUE.sub(lambda m: str(values[m[1]]), word) for word in program.command]
    words = launcher_arguments(topology, node_devices(config), words)
    if again and program.resume_args:
        words += shlex.split(program.resume_args)
    name, *arguments = [words[0], *(FOLDER.sub(lambda m: environ[m[1]], word) for word in words[1:])]
    if name == "-m":
        return [sys.executable, "-u", name, *arguments]
    if not is_file(name):
        return [name, *arguments]
    return [*([sys.executable, "-u"] if name.endswith(".py") else []), str(locate(program, name)), *arguments]


def open_output(number: int) -> tuple[int, int]:
    """Open a terminal like the one of a descriptor, for the progress bars of a program whose output is kept: to read, to write."""
    read, written = pty.openpty()
    with suppress(termios.error):
        termios.tcsetwinsize(written, termios.tcgetwinsize(number))
        settings = termios.tcgetattr(written)
        settings[1] &= ~termios.OPOST  # line ends stay as they are
        termios.tcsetattr(written, termios.TCSANOW, settings)
    return read, written


def prepare_child(ignored: Collection[int]) -> None:
    """Let the program ignore these signals, but not those that this process ignores for itself, and end with this one."""
    for number in signal.valid_signals():
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    end_with_parent()

# ruff: noqa: E402
"""One rank of a run, started with torchrun's or horovodrun's variables.

    python dropin_rank.py FOLDER OVERRIDE... [-- FOLDER OVERRIDE...]...

Trains in the run folder FOLDER and writes FOLDER/rank-<rank>.json: outcome, and this rank's part of the weights of a network of `model`.
An error is its sentence, as {"error": ...}. Several runs come one after another. With SIGNAL_AT=<rank>:<n>, that rank gets SIGTERM while
it reads its n-th batch.
"""

import gc
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[4]), str(Path(__file__).resolve().parents[4] / "engine")]

import torch
from torch.distributed.tensor import DTensor

from engine.tests.training.lightning.conftest import SignalAt
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.network.addresses import free_port
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ProjectError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning import run as side
from train_anywhere.training.lightning import setup

networks: list[torch.nn.Module] = []
build_network, open_splits = setup.build_network, setup.open_splits


def remember(*arguments: Any) -> torch.nn.Module:
    """Build the network that is trained, to look at its weights afterwards."""
    networks.append(build_network(*arguments))
    return networks[-1]


def with_signal(*arguments: Any, **named: Any) -> Any:
    """Return the data, with SIGTERM at the chosen place."""
    rank, read = map(int, os.environ.get("SIGNAL_AT", "-1:0").split(":"))
    splits = open_splits(*arguments, **named)
    return replace(splits, train=SignalAt(splits.train, read)) if rank == topology.rank else splits


def meet_again(folder: Path) -> Topology:
    """Return the ranks with another port: that of the run before may still be open on rank 0."""
    file = folder / f"port-{len(words)}"
    if not topology.rank:
        write_atomic(file, str(free_port()))
    while not file.exists():
        time.sleep(0.01)
    return replace(topology, coordinator_port=int(file.read_text()))


def train(folder: Path, words: list[str], topology: Topology) -> None:
    """Make one run."""
    networks.clear()
    try:
        config = load(compose(to_hydra_overrides(words)))
        outcome = side.train(config, RankProcess(RunDir(folder), topology, stop))
        own = [p.to_local() if isinstance(p, DTensor) else p for n in networks for p in n.parameters()]
        result = asdict(outcome) | {"weights": [p.flatten().tolist() for p in own]}
    except ProjectError as error:
        result = {"error": str(error), "kind": type(error).__name__}
    (folder / f"rank-{topology.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    setup.build_network, setup.open_splits = remember, with_signal
    topology, stop, words = discover(), Stop().install(), sys.argv[1:]
    ranks = topology
    while words:
        end = words.index("--") if "--" in words else len(words)
        stop.requested = None
        train(Path(words[0]), words[1:end], ranks)
        words = words[end + 1 :]
        if words and topology.world_size > 1:
            ranks = meet_again(Path(words[0]))
    # a thread of Gloo must not free tensors while Python ends: https://github.com/pytorch/pytorch/issues/190489
    gc.collect()

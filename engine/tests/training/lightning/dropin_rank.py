# ruff: noqa: E402
"""One rank of a user's module, started with torchrun's or horovodrun's variables.

    python dropin_rank.py FOLDER OVERRIDE... [-- FOLDER OVERRIDE...]...

Trains in the run folder FOLDER and writes FOLDER/rank-<rank>.json: outcome, and a list of the weights where each rank has them whole.
An error is its sentence, as {"error": ...}. Several runs come one after another.
"""

import gc
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[4]), str(Path(__file__).resolve().parents[4] / "engine")]

import torch

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
    try:
        config = load(compose(to_hydra_overrides(words)))
        outcome = side.train(config, RankProcess(RunDir(folder), topology, stop))
        result = asdict(outcome)
    except ProjectError as error:
        result = {"error": str(error), "kind": type(error).__name__}
    (folder / f"rank-{topology.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
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

# ruff: noqa: E402
"""One rank of a run, which a test starts with torchrun's variables.

    python ddp_rank.py FOLDER OVERRIDE...

Trains in the run folder FOLDER and writes FOLDER/rank-<rank>.json: outcome, and a list of the network's weights, or of this rank's part.
With SIGNAL_AT=<rank>:<n>, that rank gets SIGTERM while it reads its n-th batch.
"""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[4]),
    str(Path(__file__).resolve().parents[4] / "engine"),
    str(Path(__file__).resolve().parent),
]

import torch
from torch.distributed.tensor import DTensor

from engine.tests.training.lightning.conftest import SignalAt
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.distributed.discover import discover
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning import run as side
from train_anywhere.training.lightning import setup

torch.set_num_threads(1)
topology = discover()
networks = []
build_network, open_splits = setup.build_network, setup.open_splits


def remember(*arguments: Any) -> torch.nn.Module:
    """The network that is trained, to look at its weights afterwards."""
    networks.append(build_network(*arguments))
    return networks[-1]


def with_signal(*arguments: Any, **named: Any) -> Any:
    """The data, with SIGTERM at the chosen place."""
    rank, read = map(int, os.environ.get("SIGNAL_AT", "-1:0").split(":"))
    splits = open_splits(*arguments, **named)
    return replace(splits, train=SignalAt(splits.train, read)) if rank == topology.rank else splits


setup.build_network, setup.open_splits = remember, with_signal
folder = Path(sys.argv[1])
outcome = side.train(load(compose(sys.argv[2:])), RankProcess(RunDir(folder), topology, Stop().install()))
own = [p.to_local() if isinstance(p, DTensor) else p for p in networks[0].parameters()]
weights = [p.flatten().tolist() for p in own]
(folder / f"rank-{topology.rank}.json").write_text(json.dumps({**asdict(outcome), "weights": weights}))

"""Train in this process, stopped at a step, or timed."""

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.gpu.row import Clock, Place, Row, send_stop
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch.local_run import make_run
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.run import make_setup, train
from train_anywhere.training.plan import build_network

CLOCK = "callbacks.clock._target_=benchmarks.gpu.lightning.training.Ticks"
BF16 = {
    "H100 PCIe": 756, "H100 NVL": 835.5, "H100": 989.5, "H200": 989.5, "GH200": 989.5, "A100": 312, "A40": 149.7, "A10": 125, "L40S": 362,
    "L4": 121,
}  # fmt: skip
"""Dense bfloat16 peaks in 10^12 operations per second, from NVIDIA's data sheets (without sparsity)."""

STOP = "callbacks.stop._target_=benchmarks.gpu.lightning.training.StopAt"

clock = Clock()
"""Of the training that runs."""


class Ticks(pl.Callback):
    """Tells the clock of each step."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        """A step was given to the device."""
        clock.step()


class StopAt(pl.Callback):
    """Sends this process the signal that a scheduler sends ahead of a time limit.

    Args:
        step: after which.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        """Once."""
        if trainer.global_step == self.step:
            send_stop()


def fit(config: Config, run: RunDir) -> Outcome:
    """Train to the end, or to the signal."""
    clock.__init__()  # type: ignore[misc]
    outcome = train(config, RankProcess(run, Topology(), Stop().install()))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return outcome


def state(run: RunDir) -> dict[str, Any]:
    """What the newest checkpoint holds that training depends on: all but Lightning's counters."""
    newest = (run.checkpoints / "newest").read_text().strip()
    held: dict[str, Any] = torch.load(run.checkpoints / newest / "model.ckpt", weights_only=True)
    del held["loops"]
    return held


def ours(config: Config) -> float:
    """Seconds of a step of this project."""
    fit(config, make_run(config, [], local_layout(config)))
    return clock.seconds()


def prepared(config: Config) -> tuple[Clock, Any, Any, torch.device]:
    """What a loop by hand begins with: our loader and a network of ours, compiled if that is asked for."""
    batches = make_setup(config, Topology()).loaders.opened["train"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build_network(config, open_splits(config.data, "lightning", config.seed).facts).to(device)
    if config.trainer.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return Clock(), batches, torch.compile(network) if config.trainer.compile else network, device


def beside_hand(
    place: Place, name: str, unit: str, each: int, flops: float, found: Mapping[str, list[float]]
) -> Iterator[Row]:
    """A row for the loop by hand and one for ours.

    Args:
        unit: what is counted, in the plural; a step has `each` of them, and one costs `flops` operations.
        found: seconds of a step, of each round; the fastest counts.
    """
    words = torch.cuda.get_device_name().replace("-", " ").split() if place.gpu else []
    most = next((tera * 1e12 for chip, tera in BF16.items() if {*chip.split()} <= {*words}), None)
    for who, rounds in found.items():
        rate = each / min(rounds)
        share = f", {rate * flops / most:.1%} of the chip's peak" if most else ""
        beside = f", {min(found['by hand']) / min(rounds):.3f} of by hand" if who == "ours" else ""
        yield Row(f"{name}: {who}", None, f"{rate:,.0f} {unit}/s{beside}{share}")

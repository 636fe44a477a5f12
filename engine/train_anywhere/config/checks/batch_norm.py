"""`trainer.sync_batchnorm`: who can't normalise over the rows of all ranks, and what to type instead."""

from train_anywhere.config.checks.strategy_table import SEVERAL
from train_anywhere.config.schema import Config

OFF = "or trainer.sync_batchnorm=false"

ALONE = {
    "horovod": "normalises the rows of each rank by themselves",
    "dp": "normalises the rows of each device by themselves",
}
"""Strategies that can't, and what they do."""


def sync_batchnorm(c: Config) -> list[str]:
    """One sentence for each thing that keeps ranks from it."""
    if not c.trainer.sync_batchnorm:
        return []
    name = c.strategy.name
    if name in ALONE:
        return [
            f"strategy={name} {ALONE[name]}, and trainer.sync_batchnorm=true is over those of all; use "
            f"strategy={SEVERAL[c.framework][1]}, {OFF}."
        ]
    return [
        *_torch_on_a_cpu(c),
        *_within_keras(c),
    ]


def _torch_on_a_cpu(c: Config) -> list[str]:
    t = c.trainer
    devices = t.devices if t.total_devices is None else t.total_devices
    several = t.most_nodes > 1 or devices not in ("auto", 1)
    if c.framework != "lightning" or t.accelerator != "cpu" or not several:
        return []
    return [needs_gpus("trainer.accelerator=cpu asks for none")]


def needs_gpus(here: str) -> str:
    """The sentence where there are none; `here` says who has none."""
    return f"trainer.sync_batchnorm=true needs GPUs, for torch has it for them alone, and {here}; use trainer.sync_batchnorm=false."


def _within_keras(c: Config) -> list[str]:
    """Keras sums over the replicas in the graph of the step itself, and in none within it."""
    t = c.trainer
    if c.framework != "keras":
        return []
    batches = f"trainer.accumulate_grad_batches={t.accumulate_grad_batches} computes the batches of a step in a loop"
    problems = {
        "trainer.accumulate_grad_batches=1": batches if t.accumulate_grad_batches > 1 else None,
        "trainer.compile=false": "trainer.compile=true makes one function of the network for XLA"
        if t.compile
        else None,
    }
    return [
        f"{problem}, in which Keras can't sum over the ranks as trainer.sync_batchnorm=true has to; use {instead}, {OFF}."
        for instead, problem in problems.items()
        if problem
    ]

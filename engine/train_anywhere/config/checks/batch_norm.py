"""Check that a strategy can compute `trainer.sync_batchnorm`, which normalizes over the rows of all ranks."""

from train_anywhere.config.checks.strategy_table import AUTO_STRATEGIES
from train_anywhere.config.choices import Strategy
from train_anywhere.config.schema import Trainer

OFF = "or trainer.sync_batchnorm=false"

UNSUPPORTED = {"horovod": "rank", "dp": "device"}
"""Strategies without synchronized batch normalization, and what they normalize separately."""


def sync_batchnorm_problems(framework: str, strategy: Strategy, trainer: Trainer) -> list[str]:
    """Return one sentence for each reason why `trainer.sync_batchnorm=true` can't work."""
    name = strategy.name
    if not trainer.sync_batchnorm:
        return []
    if name in UNSUPPORTED:
        return [
            f"strategy={name} normalises the rows of each {UNSUPPORTED[name]} separately, and trainer.sync_batchnorm=true needs those of "
            f"all; use strategy={AUTO_STRATEGIES[framework][1]}, {OFF}."
        ]
    return _torch_problems(trainer) if framework == "lightning" else _keras_problems(trainer)


def _torch_problems(t: Trainer) -> list[str]:
    devices = t.devices if t.total_devices is None else t.total_devices
    several = t.max_nodes > 1 or devices not in ("auto", 1)
    return (
        [needs_gpus_problem("trainer.accelerator=cpu requests none")]
        if t.accelerator == "cpu" and several
        else []
    )


def needs_gpus_problem(reason: str) -> str:
    """Return the sentence for a run without GPUs; `reason` says why it has none."""
    return f"trainer.sync_batchnorm=true needs GPUs: torch supports it on GPUs only, and {reason}; use trainer.sync_batchnorm=false."


def _keras_problems(t: Trainer) -> list[str]:
    """Report keys that put the network into an inner graph: Keras can sum over replicas in the graph of the step only."""
    batches = f"trainer.accumulate_grad_batches={t.accumulate_grad_batches} computes the batches of a step in a loop"
    problems = {
        "trainer.accumulate_grad_batches=1": batches if t.accumulate_grad_batches > 1 else None,
        "trainer.compile=false": "trainer.compile=true makes the network one XLA function"
        if t.compile
        else None,
    }
    return [
        f"{problem}, in which Keras can't sum over the ranks as trainer.sync_batchnorm=true requires; use {instead}, {OFF}."
        for instead, problem in problems.items()
        if problem
    ]

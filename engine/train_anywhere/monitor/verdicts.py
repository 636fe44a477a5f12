"""Verdicts in words: what a person should know of a run, and what to do about it.

Each rule is a function of `Facts` and is silent where it has nothing to say. Its threshold has a source or was measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from train_anywhere import features
from train_anywhere.monitor.efficiency import step_time
from train_anywhere.monitor.goodput import SECTIONS, goodput
from train_anywhere.monitor.ranks import mappings
from train_anywhere.monitor.run_facts import Facts, NodeUse, Series, mean

SETTLED_S = 60.0
"""Samples of the first minute are of imports and of the first compilation: they say nothing of the training."""

ENOUGH = 6
"""Samples after that minute below which a mean says nothing: at the default interval, another minute."""

IDLE_PERCENT = 5.0
"""NVML's use is the share of time in which any kernel ran, so that even a badly fed GPU that trains shows more."""

DATA_SHARE = 0.2
"""A fifth of the training spent waiting for batches: more workers can at most give that back."""

OTHERS_SHARE = 0.5
"""Above it half of the devices' time is lost: half of the devices would be as fast, or nearly so."""

CHECKPOINT_SHARE = 0.05
"""Five times what `checkpoint.interval=auto` allows, see `features/interval/interval.py`."""

LOST_SHARE = 0.1
"""A tenth of the allocation spent on steps that were trained twice."""

CPU_SHARE = 0.5
"""CPUs that a job holds and never uses are refused or charged for at most sites; half of them leaves room for peaks."""

CPUS_WORTH_IT = 8
"""On small nodes it is not worth a sentence."""

MEMORY_SHARE = 0.95
"""Of its memory limit: the kernel ends a job's processes at 1."""


def verdicts(facts: Facts) -> list[str]:
    """All that there is to say, the worst first."""
    rest = [sentence for rule in RULES for sentence in rule(facts)]
    return [*loss_is_nan(facts), *features.verdicts(facts), *rest]


def loss_is_nan(facts: Facts) -> Iterator[str]:
    """A loss became nan or inf, and stayed so: the first that did."""
    found = []
    for name, points in facts.metrics.items():
        since = next((i for i in range(len(points), 0, -1) if math.isfinite(points[i - 1][1])), 0)
        if "loss" in name and since < len(points):
            found.append((*points[since], name))
    if found:
        step, value, name = min(found, key=lambda known: (known[0], known[2] != "train/loss"))
        yield f"{name} is {value:g} since step {int(step)}: lower optimizer.lr, or clip with trainer.gradient_clip_val=1."


def gpus_without_a_task(facts: Facts) -> Iterator[str]:
    """GPUs that the job holds and that no rank was started for."""
    held = [(len(n.gpus), n.ranks) for n in facts.present if n.gpus and n.ranks]
    left = sum(max(0, gpus - int(ranks or 0)) for gpus, ranks in held)
    if left and int(facts.info.get("world_size") or 1) >= sum(int(ranks or 0) for _, ranks in held):
        whole = sum(gpus for gpus, _ in held)
        yield f"{left} of {whole} GPUs got no task: set trainer.devices to the GPUs of a node."


def idle_gpus(facts: Facts) -> Iterator[str]:
    """GPUs that hardly ran while others, or nobody, did. The ranks of a node use its GPUs in their order."""
    for node in facts.nodes:
        ranks = sorted(node.ranks_here)
        for place, gpu in enumerate(node.gpus[: len(ranks) or None]):
            settled = after_start(gpu.use)
            if len(settled) >= ENOUGH and (use := mean(settled) or 0.0) < IDLE_PERCENT:
                idle = sum(value < IDLE_PERCENT for _, value in settled) / len(settled)
                name = f"rank {ranks[place]}'s GPU" if ranks else f"GPU {gpu.index}"
                yield f"{name} on {node.host} was idle {idle:.0%} of the time (mean use {use:.0f} %)."


def waited_for_data(facts: Facts) -> Iterator[str]:
    """The training waited for its batches."""
    spent = step_time(facts.attempts)
    stepping = spent.whole - spent.checkpoint
    if stepping >= SETTLED_S and spent.data / stepping > DATA_SHARE:
        workers = facts.config.get("data", {}).get("workers")
        now = f" (now {workers})" if workers is not None else ""
        yield f"training waited {spent.data / stepping:.0%} of each step for data: raise data.workers{now}."


def waited_for_others(facts: Facts) -> Iterator[str]:
    """The ranks waited for each other, and none of them is to blame."""
    spent = step_time(facts.attempts)
    if spent.whole < SETTLED_S or spent.efficiency is None or mappings(facts.watch.get("slow")):
        return
    if (waited := 1 - spent.efficiency) > OTHERS_SHARE:
        yield f"ranks waited {waited:.0%} of each step for the network and each other: use fewer devices, or a larger data.batch_size."


def checkpoints_are_dear(facts: Facts) -> Iterator[str]:
    """The training stood still for its checkpoints."""
    spent = seconds(facts)
    whole, saving = sum(spent.get(name, 0.0) for name in SECTIONS), spent.get("checkpoint", 0.0)
    if whole >= SETTLED_S and saving / whole > CHECKPOINT_SHARE:
        yield f"training stood still {saving / whole:.0%} of the time for checkpoints: use checkpoint.interval=auto."


def work_was_lost(facts: Facts) -> Iterator[str]:
    """Steps were trained twice after crashes."""
    found = goodput(facts.attempts)
    if found and found.whole >= SETTLED_S and found.seconds["lost"] / found.whole > LOST_SHARE:
        share = found.seconds["lost"] / found.whole
        yield f"{share:.0%} of the time went into steps that a crash lost: save more often with checkpoint.interval=auto."


def cpus_were_idle(facts: Facts) -> Iterator[str]:
    """The job held CPUs that it did not use."""
    held = [(node.cpus, used) for node in facts.present if (used := cpus_used(node)) is not None]
    cpus, busy = sum(c for c, _ in held), sum(used for _, used in held)
    if cpus >= CPUS_WORTH_IT and busy < CPU_SHARE * cpus and facts.info.get("job_ids"):
        yield f"the job used {max(1, round(busy))} of {cpus} CPUs: lower cluster.cpus_per_task, or raise data.workers."


def memory_was_short(facts: Facts) -> Iterator[str]:
    """A node's memory limit was nearly reached."""
    for node in facts.nodes:
        if node.memory and node.memory_limit and node.memory > MEMORY_SHARE * node.memory_limit:
            yield f"the job held {node.memory:.1f} of {node.memory_limit:.1f} GiB on {node.host}: raise cluster.mem."


Rule = Callable[[Facts], Iterator[str]]
RULES: tuple[Rule, ...] = (
    gpus_without_a_task,
    idle_gpus,
    waited_for_data,
    waited_for_others,
    work_was_lost,
    checkpoints_are_dear,
    memory_was_short,
    cpus_were_idle,
)


def after_start(points: Series) -> Series:
    """The samples after the first minute."""
    return [(t, value) for t, value in points if t - points[0][0] >= SETTLED_S]


def cpus_used(node: NodeUse) -> float | None:
    """Mean number of CPUs that were busy; None where there are too few samples."""
    settled = after_start(node.cpu)
    use = mean(settled)
    return None if use is None or len(settled) < ENOUGH else use / 100 * node.cpus


def seconds(facts: Facts) -> dict[str, float]:
    """Time in each section over all attempts, by the names of `monitor/heartbeat.py`."""
    total: dict[str, float] = {}
    for attempt in facts.attempts:
        spent: Any = attempt.get("seconds")
        for name, value in spent.items() if isinstance(spent, Mapping) else ():
            total[name] = total.get(name, 0.0) + float(value)
    return total

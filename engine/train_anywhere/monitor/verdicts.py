"""Verdicts on a run: sentences about its problems, and its goodput.

Each rule is a function of `Facts` that yields a sentence if its threshold, which has a source or was measured, is exceeded.

Progress is time in training steps whose result is in the run's last state: without waits for a batch or a slow rank, and without steps
that were trained again because an attempt ended before they were saved. The term and the method are those of Google's ML Goodput
Measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from train_anywhere.monitor.heartbeat import SECTIONS
from train_anywhere.monitor.ranks import mappings
from train_anywhere.monitor.run_facts import IDLE_PERCENT, WARM_UP_S, Facts
from train_anywhere.runs.attempts import step_time
from train_anywhere.runs.facts import moment, number

ENOUGH, MOST_ALIKE = 6, 5
"""Fewest samples after the first minute for a meaningful mean, which is another minute at the default interval; and most sentences of one
rule: of a large run, all nodes have the same problem."""

DATA_SHARE, OTHERS_SHARE = 0.2, 0.5
"""Shares of the training spent waiting for batches, which is the most that more workers can save, and of a step spent waiting for other
ranks: above it, half of the devices would be about as fast."""

CHECKPOINT_SHARE, LOST_SHARE = 0.05, 0.1
"""Shares of the time spent waiting for checkpoints, five times what `checkpoint.interval=auto` allows (see `features/observers.py`), and
on steps that were trained twice."""

CPU_SHARE, MIN_CPUS = 0.5, 8
"""Share of the CPUs in use, of a job with at least 8: most sites charge for unused ones or refuse such jobs; the rest is for peaks."""

MEMORY_SHARE = 0.95
"""Share of the memory limit; at 1 the kernel kills processes of the job."""


def verdicts(facts: Facts, of_features: Sequence[str]) -> list[str]:
    """Return all verdicts, the worst first. `of_features` are those of the features."""
    found = [*loss_is_nan(facts), *of_features]
    for sentences in ([*rule(facts)] for rule in RULES):
        more = len(sentences) - MOST_ALIKE
        found += [*sentences[:MOST_ALIKE], f"{more:,} more like the last one."] if more > 1 else sentences
    return found


def loss_is_nan(facts: Facts) -> Iterator[str]:
    """Report the first loss that became nan or inf and stayed so."""
    found = []
    for name, points in facts.metrics.items():
        since = next((i for i in range(len(points), 0, -1) if math.isfinite(points[i - 1][1])), 0)
        if "loss" in name and since < len(points):
            found.append((*points[since], name))
    if found:
        step, value, name = min(found, key=lambda known: (known[0], known[2] != "train/loss"))
        yield f"{name} is {value:g} since step {int(step)}: lower optimizer.lr, or clip with trainer.gradient_clip_val=1."


def unused_gpus(facts: Facts) -> Iterator[str]:
    """Report GPUs of the job without a rank."""
    nodes, each = [n for n in facts.present if n.gpus and n.ranks_here], gpus_per_rank(facts)
    left = sum(max(0, len(n.gpus) - len(n.ranks_here) * each) for n in nodes)
    if left and int(facts.info.get("world_size") or 1) >= sum(len(n.ranks_here) for n in nodes):
        whole = sum(len(n.gpus) for n in nodes)
        yield f"{left} of {whole} GPUs got no task: set trainer.devices to the GPUs of a node."


def idle_gpus(facts: Facts) -> Iterator[str]:
    """Report GPUs that were mostly idle. The ranks of a node use its GPUs in order."""
    each = gpus_per_rank(facts)
    for node in facts.nodes:
        ranks = sorted(node.ranks_here)
        for place, gpu in enumerate(node.gpus[: len(ranks) * each or None]):
            sums = gpu.sums
            if sums and sums.settled >= ENOUGH and (use := sums.settled_mean) < IDLE_PERCENT:
                idle = sums.idle / sums.settled
                name = f"rank {ranks[place]}'s GPU" if ranks and each == 1 else f"GPU {gpu.index}"
                yield f"{name} on {node.host} was idle {idle:.0%} of the time (mean use {use:.0f}%)."


def data_wait(facts: Facts) -> Iterator[str]:
    """Report a long wait for batches."""
    stepping, data, _ = step_time(facts.attempts)
    if stepping >= WARM_UP_S and (share := data / stepping) > DATA_SHARE:
        yield f"training waited {share:.0%} of the time for data: {more_workers(facts, share)}."


def more_workers(facts: Facts, share: float) -> str:
    """Return what to type if steps wait for data for this share of the time.

    With w loading processes they need w times a step for a batch, and a step without the wait takes 1 - `share` of it.
    """
    own, workers = facts.info.get("own_workers"), facts.config.get("data", {}).get("workers")
    cpus = min(
        (node.cpus // max(1, len(node.ranks_here)) for node in facts.present if node.cpus), default=None
    )
    most = cpus - 1 if cpus else 256
    typed = most if workers == "auto" else workers
    now = next((count for count in (own, typed) if isinstance(count, int)), 0)
    needed = min(most, math.ceil((now or share) / max(1 - share, 0.01)))
    if needed <= now:
        busy = f"its {cpus} CPUs per rank" if cpus else f"{now} processes"
        return f"{busy} load as fast as they can, cluster.cpus_per_task requests more CPUs"
    if own is not None:
        is_lightning = facts.info.get("framework") == "lightning"
        loader = "your DataLoader" if is_lightning else "your PyDataset, or the map of your tf.data"
        return f"num_workers={needed} of {loader} (now {now})"
    return f"data.workers={needed} (now {now})"


def communication_wait(facts: Facts) -> Iterator[str]:
    """Report a long wait of the ranks for each other, if none of them is a slow one."""
    stepping, _, efficiency = step_time(facts.attempts)
    if stepping < WARM_UP_S or efficiency is None or mappings(facts.watch.get("slow")):
        return
    if (waited := 1 - efficiency) > OTHERS_SHARE:
        yield f"ranks waited {waited:.0%} of each step for the network and each other: use fewer devices, or a larger data.batch_size."


def lost_time(facts: Facts) -> Iterator[str]:
    """Report steps that were trained twice after crashes, and a long wait for checkpoints."""
    found = goodput(facts.attempts)
    if not found or found.whole < WARM_UP_S:
        return
    if (share := found.seconds["lost"] / found.whole) > LOST_SHARE:
        yield f"{share:.0%} of the time was spent on steps lost in a crash: save more often with checkpoint.interval=auto."
    if (share := found.seconds["checkpoint"] / found.whole) > CHECKPOINT_SHARE:
        yield f"training waited {share:.0%} of the time for checkpoints: use checkpoint.interval=auto."


def idle_cpus(facts: Facts) -> Iterator[str]:
    """Report CPUs of the job that it did not use."""
    cpus, busy = 0, 0.0
    for node in facts.present:
        if node.sums and node.sums.settled >= ENOUGH:
            cpus += node.cpus
            busy += node.sums.settled_mean / 100 * node.cpus
    if cpus >= MIN_CPUS and busy < CPU_SHARE * cpus and facts.info.get("job_ids"):
        yield f"the job used {max(1, round(busy))} of {cpus} CPUs: lower cluster.cpus_per_task, or raise data.workers."


def memory_near_limit(facts: Facts) -> Iterator[str]:
    """Report nodes on which the job's memory was close to its limit."""
    for node in facts.nodes:
        if node.memory and node.memory_limit and node.memory > MEMORY_SHARE * node.memory_limit:
            yield f"the job used {node.memory:.1f} of {node.memory_limit:.1f} GiB on {node.host}: raise cluster.mem."


RULES = (unused_gpus, idle_gpus, data_wait, communication_wait, lost_time, memory_near_limit, idle_cpus)


def gpus_per_rank(facts: Facts) -> int:
    """Return the number of GPUs of each rank: several with `strategy=mirrored`."""
    newest = facts.attempts[-1] if facts.attempts else {}
    return max(1, int(newest.get("devices") or 1) // int(facts.info.get("world_size") or 1))


TITLES = {
    "progress": "progress",
    "start": "start",
    "data": "waiting for data",
    "slow": "waiting for a slow rank",
    "validation": "validation",
    "test": "test",
    "checkpoint": "checkpoints",
    "lost": "lost in a crash",
    "end": "end",
    "unknown": "not accounted for",
}
"""Categories of an allocation's time and their titles, in the order of the report."""


@dataclass(frozen=True)
class Goodput:
    """Time of one or more attempts by category.

    Attributes:
        seconds: seconds by the keys of `TITLES`; they add up to `whole`.
        whole: seconds from the start of each job to its end, over all attempts, without the time in the queue.
        device_hours: `whole` in hours, times the number of allocated devices.
    """

    seconds: Mapping[str, float]
    whole: float
    device_hours: float

    @property
    def share(self) -> float:
        """The share of the time that made progress, from 0 to 1."""
        return self.seconds["progress"] / self.whole if self.whole else 0.0


def goodput(attempts: Sequence[Mapping[str, Any]]) -> Goodput | None:
    """Return the goodput of a run, from its attempts, oldest first. None if no attempt has recorded its times.

    `seconds` is the time in each section; `data` and `slow` are parts of `step`. `allocated` is the start of the job, `until` the end of
    the attempt or its last sign of life, `script_ended` the time when the batch script was done with it; the time in between counts as
    `end` if the attempt recorded its own end.
    """
    pairs = zip_longest(attempts, attempts[1:])
    parts = [attempt_goodput(a, after) for a, after in pairs if isinstance(a.get("seconds"), Mapping)]
    if not parts:
        return None
    seconds = {name: sum(part.seconds[name] for part in parts) for name in TITLES}
    return Goodput(seconds, sum(p.whole for p in parts), sum(p.device_hours for p in parts))


def attempt_goodput(attempt: Mapping[str, Any], after: Mapping[str, Any] | None) -> Goodput:
    """Return the goodput of one attempt. `after` is the next one, if any."""
    spent = defaultdict(float, {name: number(value) or 0.0 for name, value in attempt["seconds"].items()})
    began = attempt.get("allocated") or attempt.get("started")
    after_s = _seconds_between(attempt.get("until"), attempt.get("script_ended"))
    counted = sum(spent[name] for name in ("before", *SECTIONS))
    whole = max(counted, _seconds_between(began, attempt.get("until")) + after_s)
    stepping, data = spent["step"], spent["data"]
    slow = min(spent["slow"], max(0.0, stepping - data))
    # the share of its steps that the next attempt did not train again
    first, last, saved = attempt.get("from_step"), attempt.get("step"), 1.0
    resumed = (after or {}).get("from_step", last)
    if isinstance(first, int) and isinstance(last, int) and isinstance(resumed, int) and last > first:
        saved = 1 - min(1.0, max(0, last - max(first, resumed)) / (last - first))
    parts = {
        "progress": (stepping - data - slow) * saved + spent["program"],
        "start": spent["before"] + spent["start"],
        "data": data * saved,
        "slow": slow * saved,
        "lost": stepping * (1 - saved),
        **{name: spent[name] for name in ("validation", "test", "checkpoint", "end")},
    }
    left = max(0.0, whole - sum(parts.values()))
    # without a recorded end it is unknown how long it trained after the last record
    if (attempt.get("ended_by") or "killed") not in ("killed", "hang"):
        parts["end"] += min(left, after_s)
    parts["unknown"] = max(0.0, whole - sum(parts.values()))
    return Goodput(parts, whole, whole * int(attempt.get("devices") or 1) / 3600)


def _seconds_between(first: Any, then: Any) -> float:
    began, ended = moment(first), moment(then)
    return 0.0 if began is None or ended is None else max(0.0, ended - began)

"""Verdicts. Those on GPUs are tried with samples made up here: this machine has none."""

from pathlib import Path

import pytest

from train_anywhere import features
from train_anywhere.monitor.run_facts import IDLE_PERCENT, AttemptSums, Facts, GpuUse, NodeUse
from train_anywhere.runs.folder import RunDir


def verdicts(facts: Facts) -> list[str]:
    return features.describe(facts)[0]


def every_ten_seconds(value: float) -> AttemptSums:
    """Sums of samples of a constant over 5 minutes."""
    idle = 24 * (value < IDLE_PERCENT)
    return AttemptSums(1e9, 1e9 + 290, value, 30, 30 * value, 24, 24 * value, idle)


def node(
    host: str, uses: list[float], ranks: int = 2, cpu: float = 80, cpus: int = 24, **more: float
) -> NodeUse:
    gpus = tuple(GpuUse(i, [], None, None, every_ten_seconds(use)) for i, use in enumerate(uses))
    fields = {"memory": 10.0, "memory_limit": 100.0, **more, "sums": every_ten_seconds(cpu)}
    return NodeUse(host, cpus, [], ranks_here=tuple(range(ranks)), gpus=gpus, **fields)


def facts(**fields: object) -> Facts:
    info = {"world_size": fields.pop("world_size", 4), "job_ids": ["7"]}
    info |= {key: fields.pop(key, []) for key in ("attempts", "hosts")} | {
        "own_workers": fields.pop("own_workers", None)
    }
    return Facts(info=info, config={"data": {"workers": 2}}, **fields)  # type: ignore[arg-type]


HEALTHY = facts(
    nodes=(node("gpu33", [90, 88]), node("gpu34", [91, 80])),
    metrics={"train/loss": [(20.0, 1.0), (40.0, 0.5)]},
    attempts=[{"seconds": {"start": 20, "step": 1000, "data": 50, "checkpoint": 5}}],
)


def test_a_healthy_run_has_none() -> None:
    assert verdicts(HEALTHY) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number(value: float) -> None:
    points = [(20.0, 1.0), (40.0, value), (60.0, value)]
    (said,) = verdicts(facts(metrics={"train/loss": points}))
    assert f"train/loss is {value:g} since step 40" in said
    assert verdicts(facts(metrics={"train/loss": [*points, (80.0, 0.9)]})) == []


def test_what_the_machine_did(tmp_path: Path) -> None:
    (tmp_path / "bad_nodes").write_text("node2,node3\n")
    assert verdicts(facts(run=RunDir(tmp_path))) == [
        "node2, node3 failed more than once and are excluded: report this to the site, and meanwhile use cluster.exclude=node2,node3."
    ]


def seconds(**of: float) -> dict[str, object]:
    return {"attempts": [{"seconds": of}]}


BUSY, LATE = node("gpu33", [90, 90]), {"step": 100, "data": 20, "others": 48}
FEW_CPUS = (node("gpu33", [90, 90], cpu=20), node("gpu34", [90, 90], cpu=18))
NO_TASK = "1 of 5 GPUs got no task: set trainer.devices to the GPUs of a node."
LOST = [
    {"from_step": 0, "step": 100, "seconds": {"step": 100}},
    {"from_step": 50, "step": 100, "seconds": {"step": 50}},
]
SAID: dict[str, tuple[dict[str, object], list[str]]] = {
    "idle": ({"nodes": (node("gpu33", [90, 1]), node("gpu34", [90, 90]))}, ["rank 1's GPU on gpu33 was idle 100% of the time (mean"]),
    "idle, no rank": ({"nodes": (node("gpu33", [90, 1], ranks=0),)}, ["GPU 1 on gpu33 was idle 100% of the time (mean use 1%)."]),
    "no task": ({"nodes": (node("gpu33", [90, 90, 0], ranks=2), node("gpu34", [90, 90], ranks=2))}, [NO_TASK]),
    "one process with all GPUs, as of strategy=mirrored": (
        {"nodes": (node("gpu33", [90, 90, 1, 90, 0], ranks=1),), "attempts": [{"devices": 4}], "world_size": 1},
        [NO_TASK, "GPU 2 on gpu33 was idle 100% of the time (mean use 1%)."],
    ),
    "data": (seconds(step=100, data=40), ["training waited 40% of the time for data: data.workers=4 (now 2)."]),
    "data, few CPUs": (seconds(step=100, data=40) | {"nodes": (node("n", [90, 90], cpus=6),)}, ["its 3 CPUs per rank load as fast"]),
    "data, own loader": (seconds(step=100, data=40) | {"own_workers": 0}, ["for data: num_workers=1 of your PyDataset"]),
    "too short to judge": (seconds(step=10, data=4), []),
    "others": (seconds(**LATE), ["ranks waited 60% of each step for the network and each other"]),
    "a slow rank": (seconds(**LATE) | {"watch": {"slow": [{"rank": 3, "factor": 1.5}]}}, ["rank 3 took 1.5 times"]),
    "idle CPUs": ({"nodes": FEW_CPUS}, ["the job used 9 of 48 CPUs"]),
    # the job came back on other nodes: it never held 72 CPUs
    "nodes of an earlier attempt": (
        {"nodes": (*FEW_CPUS, node("gpu35", [90, 90, 90], cpu=1)), "hosts": ["gpu33", "gpu34.cluster"]}, ["the job used 9 of 48 CPUs"],
    ),
    "checkpoints": (seconds(step=100, checkpoint=20), ["17% of the time for checkpoints"]),
    "lost work": ({"attempts": LOST}, ["33% of the time was spent on steps lost in a crash"]),
    "memory": ({"nodes": (node("gpu33", [90, 90], memory=99.0),)}, ["the job used 99.0 of 100.0 GiB on gpu33: raise cluster.mem."]),
    "slow": (
        {"nodes": (BUSY,), "watch": {"slow": [{"rank": 1, "factor": 1.62}], "hang": None, "hangs": []}},
        ["rank 1 on gpu33 took 1.6 times as long as the others"],
    ),
    "hangs": ({"watch": {"hang": {"line": "rank 1 hangs."}, "hangs": [{"step": 3}]}}, ["rank 1 hangs."]),
    "not started": ({"watch": {"late": [2, 3]}}, ["not started yet: ranks 2, 3."]),
    "hung": ({"watch": {"hang": None, "hangs": [{"step": 7}, {"step": 30}]}}, ["the run hung at step 7, 30 and was stopped"]),
}  # fmt: skip
"""Facts of a run, and parts of its verdicts."""


@pytest.mark.parametrize("case", SAID)
def test_verdicts_of_facts(case: str) -> None:
    known, expected = SAID[case]
    said = verdicts(facts(**known))
    assert len(said) == len(expected) and all(
        one in told for one, told in zip(expected, said, strict=True)
    ), said

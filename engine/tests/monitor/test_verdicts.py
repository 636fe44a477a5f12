"""Verdicts. Those on GPUs are tried with samples made up here: this machine has none."""

from pathlib import Path

import pytest

from train_anywhere.features import verdicts
from train_anywhere.monitor.run_facts import Facts, GpuUse, NodeUse
from train_anywhere.runs.facts import Series
from train_anywhere.runs.folder import RunDir


def every_ten_seconds(value: float, minutes: float = 5) -> Series:
    """Samples of a constant."""
    return [(1e9 + 10 * i, value) for i in range(int(6 * minutes))]


def node(
    host: str, uses: list[float], ranks: int = 2, cpu: float = 80, cpus: int = 24, **more: float
) -> NodeUse:
    gpus = tuple(GpuUse(i, every_ten_seconds(use), [], None) for i, use in enumerate(uses))
    fields = {"memory": 10.0, "memory_limit": 100.0, **more}
    return NodeUse(host, cpus, every_ten_seconds(cpu), ranks_here=tuple(range(ranks)), gpus=gpus, **fields)


def facts(**fields: object) -> Facts:
    info = {"world_size": fields.pop("world_size", 4), "job_ids": ["7"]}
    info |= {key: fields.pop(key, []) for key in ("attempts", "hosts")}
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


def test_an_idle_gpu() -> None:
    (said,) = verdicts(facts(nodes=(node("gpu33", [90, 1]), node("gpu34", [90, 90]))))
    assert said == "rank 1's GPU on gpu33 was idle 100% of the time (mean use 1%)."
    (said,) = verdicts(facts(nodes=(node("gpu33", [90, 1], ranks=0),)))
    assert said == "GPU 1 on gpu33 was idle 100% of the time (mean use 1%)."


def test_gpus_without_a_task() -> None:
    nodes = (node("gpu33", [90, 90, 0], ranks=2), node("gpu34", [90, 90], ranks=2))
    assert verdicts(facts(nodes=nodes)) == [
        "1 of 5 GPUs got no task: set trainer.devices to the GPUs of a node."
    ]


def test_one_process_uses_all_gpus_of_a_node() -> None:
    """The process uses Keras with strategy=mirrored."""
    nodes = (node("gpu33", [90, 90, 1, 90, 0], ranks=1),)
    known = facts(nodes=nodes, attempts=[{"devices": 4}], world_size=1)
    unused, idle = verdicts(known)
    assert unused == "1 of 5 GPUs got no task: set trainer.devices to the GPUs of a node."
    assert idle == "GPU 2 on gpu33 was idle 100% of the time (mean use 1%)."


def test_waiting_for_data() -> None:
    (said,) = verdicts(facts(attempts=[{"seconds": {"step": 100, "data": 40}}]))
    assert said == "training waited 40% of each step for data: raise data.workers (now 2)."
    assert verdicts(facts(attempts=[{"seconds": {"step": 10, "data": 4}}])) == []  # too short to judge


def test_waiting_for_others() -> None:
    seconds = {"step": 100, "data": 20, "others": 48}
    (said,) = verdicts(facts(attempts=[{"seconds": seconds}]))
    assert said.startswith("ranks waited 60% of each step for the network and each other")
    slow = {"slow": [{"rank": 3, "factor": 1.5}]}
    (said,) = verdicts(facts(attempts=[{"seconds": seconds}], watch=slow))  # that is the reason
    assert said.startswith("rank 3 took 1.5 times")


def test_idle_cpus() -> None:
    (said,) = verdicts(facts(nodes=(node("gpu33", [90, 90], cpu=20), node("gpu34", [90, 90], cpu=18))))
    assert said.startswith("the job used 9 of 48 CPUs")


def test_nodes_of_an_earlier_attempt_do_not_count() -> None:
    """The job came back on other nodes: it never held 72 CPUs."""
    now = (node("gpu33", [90, 90], cpu=20), node("gpu34", [90, 90], cpu=18))
    known = facts(nodes=(*now, node("gpu35", [90, 90, 90], cpu=1)), hosts=["gpu33", "gpu34.cluster"])
    (said,) = verdicts(known)
    assert said.startswith("the job used 9 of 48 CPUs")


def test_checkpoints_that_take_long() -> None:
    (said,) = verdicts(facts(attempts=[{"seconds": {"step": 100, "checkpoint": 20}}]))
    assert "17% of the time for checkpoints" in said


def test_work_that_was_lost() -> None:
    first = {"from_step": 0, "step": 100, "seconds": {"step": 100}}
    (said,) = verdicts(facts(attempts=[first, {"from_step": 50, "step": 100, "seconds": {"step": 50}}]))
    assert said.startswith("33% of the time was spent on steps lost in a crash")


def test_memory_near_its_limit() -> None:
    (said,) = verdicts(facts(nodes=(node("gpu33", [90, 90], memory=99.0),)))
    assert said == "the job used 99.0 of 100.0 GiB on gpu33: raise cluster.mem."


def test_what_the_watch_has_found_is_told() -> None:
    nodes = (node("gpu33", [90, 90]),)
    (said,) = verdicts(
        facts(nodes=nodes, watch={"slow": [{"rank": 1, "factor": 1.62}], "hang": None, "hangs": []})
    )
    assert said.startswith("rank 1 on gpu33 took 1.6 times as long as the others")
    assert verdicts(facts(watch={"hang": {"line": "rank 1 hangs."}, "hangs": [{"step": 3}]})) == [
        "rank 1 hangs."
    ]
    assert verdicts(facts(watch={"late": [2, 3]})) == ["not started yet: ranks 2, 3."]
    (ended,) = verdicts(facts(watch={"hang": None, "hangs": [{"step": 7}, {"step": 30}]}))
    assert ended.startswith("the run hung at step 7, 30 and was stopped")

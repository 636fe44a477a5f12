"""Files of a run folder that are whole, half-written, of another version, or not there."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.distributed.topology import Topology
from train_anywhere.runs import facts
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import read_reports, report_location, report_weights

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def make(tmp_path: Path, live: Any = None, **attempt: Any) -> tuple[RunDir, dict[str, Any]]:
    """Make a run that began at BEGAN with this live.json. Return it and its run.json."""
    (tmp_path / "monitor").mkdir()
    if live is not None:
        (tmp_path / "monitor" / "live.json").write_text(live if isinstance(live, str) else json.dumps(live))
    info = {"epoch": 1, "step": 5, "attempts": [{"started": BEGAN.isoformat(), **attempt}]}
    return RunDir(tmp_path), info


def at(seconds: float) -> float:
    return (BEGAN + timedelta(seconds=seconds)).timestamp()


def test_while_it_trains_live_json_counts(tmp_path: Path) -> None:
    live = {
        "time": at(60),
        "section": "train",
        "epoch": 3,
        "epochs": 9,
        "step": 21,
        "rate": 7,
        "metrics": {"val/loss": None},
    }
    progress = facts.read_progress(*make(tmp_path, live))
    assert (progress.epoch, progress.epochs, progress.step, progress.rate) == (3, 9, 21, 7.0)
    assert progress.metrics == {"val/loss": None}
    assert progress.moved == pytest.approx(time.time() - at(60), abs=30)


@pytest.mark.parametrize(
    "live, attempt",
    [
        ({"time": at(-60), "step": 21}, {}),  # of an earlier attempt
        ({"time": at(60), "step": 21}, {"step": 5, "ended_by": "completed"}),
        ({"step": 21}, {}),
        ({"time": "noon", "step": 21}, {}),
        ('{"time": 17672', {}),
        ("[21]", {}),
        ("", {}),
        (None, {}),
        ({"time": at(60), "step": 21}, {"started": "noon"}),
    ],
)
def test_else_run_json_does(tmp_path: Path, live: Any, attempt: dict[str, Any]) -> None:
    progress = facts.read_progress(*make(tmp_path, live, **attempt))
    assert (progress.epoch, progress.step, progress.section) == (1, 5, None)


def test_fields_of_another_kind_are_left_out(tmp_path: Path) -> None:
    live = {"time": at(60), "epoch": "three", "step": True, "rate": [], "metrics": {"a": "b", "c": 1}}
    progress = facts.read_progress(*make(tmp_path, live))
    assert (progress.epoch, progress.step, progress.rate, progress.metrics) == (None, None, None, {"c": 1.0})


def test_the_newest_checkpoint_is_the_one_with_the_most_steps(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    assert facts.find_checkpoint(run) is None
    for name in ("00000009", "00000010", ".00000011.part", "newest"):
        (run.checkpoints / name).mkdir(parents=True)
    os.utime(run.checkpoints / "00000010", (time.time() - 100, time.time() - 100))
    found = facts.find_checkpoint(run)
    assert found and (found.step, found.path.name, round(found.age, -1)) == (10, "00000010", 100)


def test_each_node_of_the_newest_attempt_has_its_samples(tmp_path: Path) -> None:
    run, info = make(tmp_path)
    for name, content in {
        "node1": "{}",
        "node2": '{"cpus": 4}',
        "node9": '{"cpus": 9}',
        "live": '{"step": 3}',
    }.items():
        (tmp_path / "monitor" / f"{name}.json").write_text(content)
    assert facts.read_nodes(run, {**info, "hosts": ["node1", "node2", "node3", "live", "../x"]}) == {
        "node2": {"cpus": 4}
    }
    assert facts.read_nodes(run, {**info, "hosts": None}) == {}


def test_what_was_typed(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    assert facts.read_overrides(run) == {}
    run.overrides.write_text("seed=2\n+data.x=a=b\n~loggers\n")
    assert facts.read_overrides(run) == {"seed": "2", "data.x": "a=b"}


@pytest.mark.parametrize(
    "text", ["", "step,epoch\n1,1\n", "step,val/loss\nx,1\n", "\0", "step,val/loss\n1\n"]
)
def test_a_curve_that_is_not_there(tmp_path: Path, text: str) -> None:
    run, _ = make(tmp_path)
    assert facts.metric_values(run, "val/loss") == []
    run.metrics_csv.write_text(text)
    assert facts.metric_values(run, "val/loss") == []


def test_ranks_with_equal_weights_report_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    for rank, weights in enumerate([b"b", b"b", b"c"]):
        topology = Topology(rank=rank, local_rank=rank, world_size=3, local_world_size=3, launched_by="srun")
        report_location(run, topology)
        report_weights(run, topology, [b"a", weights])
    found = read_reports(run)
    assert [found[r]["launched_by"] for r in range(3)] == ["srun"] * 3
    assert found[0]["weights"] == found[1]["weights"] != found[2]["weights"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 0 of 3: local rank 0 of 3 on node 0 (")
    assert lines[-1] == f"rank 2 of 3: weights {found[2]['weights']}"


def test_a_new_start_forgets_the_weights_of_an_earlier_one(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    report_weights(run, Topology(), [b"a"])
    report_location(run, Topology())
    assert "weights" not in read_reports(run)[0]


def test_a_report_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.json").write_text("{")
    assert read_reports(RunDir(tmp_path)) == {}


def test_a_disk_that_takes_no_report_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ranks").write_text("a file in the way")
    report_location(RunDir(tmp_path), Topology())
    assert "rank 0 of 1" in capsys.readouterr().out

"""Reports of ranks for people and for programs."""

from pathlib import Path

import pytest

from train_anywhere.distributed.topology import Topology
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import read_reports, report_location, report_weights


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

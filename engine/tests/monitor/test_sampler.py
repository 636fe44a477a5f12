"""The files of one node's samples."""

import csv
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import fake_nvml
from train_anywhere.config.schema import Config
from train_anywhere.features.sampler.sampler import Sampler, Table
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return [*csv.DictReader(file)]


def test_a_sample_is_a_row_and_the_newest(make_run, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    monkeypatch.syspath_prepend(fake_nvml(tmp_path / "nvml"))
    config, run = make_run()
    sampler, now = Sampler(run, config.monitor, config.trainer.max_nodes, "node7"), time.time()
    for i in range(2):
        sampler.poll(now + 10 * i)
    sampler.close()
    table = rows(run.monitor / "node7.csv")
    assert [float(row["time"]) for row in table] == [round(now, 3), round(now + 10, 3)]
    assert (table[0]["gpu0_use_percent"], table[0]["gpu0_power_w"]) == ("87.0", "301.25")
    assert table[0]["gpu2_use_percent"] == "" and "gpu1_power_w" not in table[0]
    newest = json.loads((run.monitor / "node7.json").read_text())
    assert newest["host"] == "node7" and newest["every_seconds"] == 10 and newest["cpus"] >= 1
    assert [gpu["index"] for gpu in newest["gpus"]] == [0, 2]
    assert newest["sample"]["gpu2_use_percent"] is None
    assert newest["sample"]["time"] == round(now + 10, 3)
    # measured over less than half a second: psutil would give 0
    assert newest["sample"]["cpu_use_percent"] is None


def test_large_jobs_write_no_more_often_together(make_config, make_run):
    _, run = make_run()
    config = make_config("trainer.nodes=2000")
    sampler = Sampler(run, config.monitor, config.trainer.max_nodes, "a")
    assert sampler.every_seconds == 200


def test_a_table_goes_on_in_the_next_attempt(tmp_path: Path) -> None:
    Table(tmp_path / "a.csv").add({"time": 1, "x": 2.5})
    (tmp_path / "a.csv").write_text(
        (tmp_path / "a.csv").read_text() + "7,0."
    )  # killed in the middle of a row
    Table(tmp_path / "a.csv").add({"time": 2, "x": None})
    assert (tmp_path / "a.csv").read_text() == "time,x\n1,2.5\n2,\n"


def test_a_table_of_other_columns_is_kept(tmp_path: Path) -> None:
    Table(tmp_path / "a.csv").add({"time": 1, "gpu0": 1})
    Table(tmp_path / "a.csv").add({"time": 2})
    assert (tmp_path / "a.csv").read_text() == "time\n2\n"
    assert (tmp_path / "a.csv.before-1").read_text() == "time,gpu0\n1,1\n"


@pytest.mark.needs_root
def test_a_full_disk_leaves_whole_rows(small_disk: Path) -> None:
    table = Table(small_disk / "a.csv")
    with pytest.raises(OSError, match="No space left"):
        for i in range(10_000):
            table.add({"time": i, "word": "x" * 999})
    whole = (small_disk / "a.csv").read_text()
    assert whole.endswith("x\n") and {len(line) for line in whole.splitlines()[100:900]} <= {1002, 1003}
    assert len(whole) > 900_000

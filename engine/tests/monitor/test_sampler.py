"""The files of one node's samples, and the GPUs of a job, with a stand-in for NVML that answers as the driver does."""

import csv
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import GPUS, fake_nvml
from train_anywhere.config.schema import Config
from train_anywhere.features import sampler as machine
from train_anywhere.features.sampler import Gpu, Sampler, reader, visible_gpus
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return [*csv.DictReader(file)]


def test_a_sample_is_a_row_and_the_newest(make_run, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,4")
    monkeypatch.syspath_prepend(fake_nvml(tmp_path / "nvml", [*GPUS, None]))
    monkeypatch.setattr(machine, "SHORTEST_S", 60)
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
    assert [(gpu["index"], gpu["name"][:11]) for gpu in newest["gpus"]] == [
        (0, "NVIDIA A100"),
        (2, "NVIDIA A100"),
        (4, ""),
    ]
    assert newest["sample"]["gpu2_use_percent"] is None
    assert newest["sample"]["time"] == round(now + 10, 3)
    # measured over too short a time: psutil would give 0
    assert newest["sample"]["cpu_use_percent"] is None


def test_large_jobs_write_no_more_often_together(make_config, make_run):
    _, run = make_run()
    config = make_config("trainer.nodes=2000")
    sampler = Sampler(run, config.monitor, config.trainer.max_nodes, "a")
    assert sampler.every_seconds == 200


def test_a_table_goes_on_in_the_next_attempt(make_run):
    """After a kill in the middle of a row, and on a node with another GPU. Its sums are those of all attempts."""
    config, run = make_run()
    run.monitor.mkdir()
    (run.monitor / "a.csv").write_text("time,cpu_use_percent,gpu7_power_w\n1,2.5,9\n7,0.")
    sums = {"cpu_use_percent": [1.0, 1.0, 2.5, 1, 2.5, 0, 0, 0]}
    (run.monitor / "a.json").write_text(json.dumps({"sums": sums}))
    sampler = Sampler(run, config.monitor, 1, "a")
    sampler.machine.sample()
    time.sleep(0.6)
    sampler.poll(100.0)
    first, second = rows(run.monitor / "a.csv")
    assert (first["time"], first["gpu7_power_w"]) == ("1", "9")
    assert (second["time"], second["gpu7_power_w"]) == ("100.0", "")
    assert float(second["memory_used_gib"]) > 0 and not first["memory_used_gib"]
    assert json.loads((run.monitor / "a.json").read_text())["sums"]["cpu_use_percent"][:4:3] == [1.0, 2]


UUIDS = [f"GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a00{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests run on a machine with a GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_driver_is_no_gpu() -> None:
    assert reader()() == []


@pytest.mark.parametrize(
    "listed, indices",
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,3", [2, 3]),
        (f"{UUIDS[1]}", [1]),
        ("NoDevFiles", []),
        ("7", [0, 1, 2, 3]),  # the driver shows only the job's, and counts them in another way
    ],
)
def test_only_the_job_s_gpus(listed: str | None, indices: list[int]) -> None:
    gpus = [Gpu(i, uuid, "") for i, uuid in enumerate(UUIDS)]
    found = visible_gpus(gpus, {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed})
    assert [g.index for g in found] == indices


def test_the_installed_nvml_has_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml")
    import pynvml

    names = {*re.findall(r"nvml\.(\w+)", Path(machine.__file__).read_text())}
    assert len(names) > 8 and [name for name in names if not hasattr(pynvml, name)] == []

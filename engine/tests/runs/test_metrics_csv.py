"""metrics.csv."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.files.atomic import LARGEST
from train_anywhere.runs import facts, metrics_csv
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.best import find_best

METRICS = [f"{part}/{name}" for part in ("train", "val", "test") for name in ("loss", "acc")]
HEADER = "step,epoch,lr,train/loss,train/acc,val/loss,val/acc,test/loss,test/acc"


def test_a_row_has_a_place_for_every_metric(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv", METRICS)
    log.write(20, 1, {"train/loss": 0.25, "train/acc": 0.5, "lr": 1e-3})
    log.write(30, 2, {"val/loss": 1 / 3})
    assert log.path.read_text().splitlines() == [HEADER, "20,1,0.001,0.25,0.5,,,,", "30,2,,,,0.333333,,,"]


def test_a_second_log_continues_the_same_file(tmp_path: Path) -> None:
    CsvLog(tmp_path / "metrics.csv", METRICS).write(1, 1, {})
    CsvLog(tmp_path / "metrics.csv", METRICS).write(2, 1, {})
    assert [line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().splitlines()] == [
        "step",
        "1",
        "2",
    ]


def test_resume_drops_what_will_be_written_again(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv", METRICS)
    for step in (10, 20, 30):
        log.write(step, 1, {"train/loss": 1.0})
    with open(log.path, "a") as file:
        file.write("40,2,0.0")  # killed while writing
    log.resume(20)
    log.write(30, 2, {})
    rows = [line.split(",") for line in log.path.read_text().splitlines()]
    assert [row[:2] for row in rows] == [["step", "epoch"], ["10", "1"], ["20", "1"], ["30", "2"]]
    assert all(len(row) == len(HEADER.split(",")) for row in rows)


def test_resume_at_the_start_leaves_the_header(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv", METRICS)
    log.write(10, 1, {})
    log.resume(0)
    assert log.path.read_text() == HEADER + "\n"
    assert (tmp_path / "metrics.csv.before-1").read_text() == HEADER + "\n10,1,,,,,,,\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"step,epoch,mine\n1,2,3\n", b"step,epochs,lr\n"])
def test_what_is_no_log_is_kept(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    log = CsvLog(path, METRICS)
    log.resume(5)
    assert path.read_text() == HEADER + "\n"
    assert (tmp_path / "metrics.csv.damaged-1").read_bytes() == content
    assert "it is kept as" in capsys.readouterr().err


def test_rows_do_not_go_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("mine")
    (tmp_path / "metrics.csv").symlink_to(tmp_path / ".bashrc")
    CsvLog(tmp_path / "metrics.csv", METRICS).write(1, 1, {})
    assert (tmp_path / ".bashrc").read_text() == "mine"


@pytest.mark.parametrize("content", ["", HEADER[:20]])
def test_a_log_that_was_just_begun_is_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    assert CsvLog(tmp_path / "metrics.csv", METRICS).path.read_text() == HEADER + "\n"


@pytest.mark.needs_root
def test_a_full_disk_gets_its_rows_when_there_is_room(small_disk: Path) -> None:
    log = CsvLog(small_disk / "metrics.csv", METRICS)
    log.write(10, 1, {"train/loss": 0.5})
    filler = small_disk / "filler"
    with suppress(OSError):
        filler.write_bytes(b"x" * (2 << 20))
    for step in range(20, 5000, 10):  # more than the last page of the file has room for
        log.write(step, 1, {"train/loss": 0.25, "lr": 0.001})
    filler.unlink()
    log.write(5000, 1, {})
    steps = [line.split(",")[0] for line in log.path.read_text().splitlines()]
    assert steps == ["step", *map(str, range(10, 5001, 10))]


def test_a_metric_that_comes_later_gets_a_column(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv", ["train_loss"])
    log.write(10, 1, {"train_loss": 0.5})
    log.write(20, 1, {"train_loss": 0.25, "f1, macro": 0.75})
    log.write(20, 1, {"f1, macro": 1.0})
    again = CsvLog(log.path)
    again.resume(20)
    assert again.columns == ["step", "epoch", "lr", "train_loss", "f1, macro"]
    assert log.path.read_text().splitlines() == [
        'step,epoch,lr,train_loss,"f1, macro"',
        "10,1,,0.5,",
        "20,1,,0.25,0.75",
        "20,1,,,1",
    ]


def test_a_column_is_added_to_whole_rows_alone(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv", ["a"])
    log.write(10, 1, {"a": 1.0})
    with open(log.path, "a") as file:
        file.write("20,1,0.5")  # killed while writing
    assert CsvLog(log.path, ["b"]).path.read_text() == "step,epoch,lr,a,b\n10,1,,1,\n"


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_rows_wait_for_a_disk_that_is_full_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.csv"
    with monkeypatch.context() as patch:
        patch.setattr(metrics_csv, "write_atomic", full)
        log = CsvLog(path, ["a"])
        log.resume(0)
        log.write(1, 1, {"a": 1.0})
        log.write(2, 1, {"b": 2.0})
        assert not path.exists()
    assert capfd.readouterr().err.count(f"{path} can't be written (No space left on device)") == 1
    log.write(3, 1, {"a": 3.0, "b": 4.0})
    assert path.read_text() == "step,epoch,lr,a,b\n1,1,,1,\n2,1,,,2\n3,1,,3,4\n"
    log.write(4, 1, {"a": 5.0})
    assert path.read_text().endswith("4,1,,5,\n")


def test_a_resumed_file_that_can_not_be_cut_back_is_cut_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,lr,a\n1,1,,1\n2,1,,2\n")
    with monkeypatch.context() as patch:
        patch.setattr(metrics_csv, "write_atomic", full)
        log = CsvLog(path, ["a"])
        log.resume(1)
        assert log._rows() == ["1,1,,1\n"]
    log.write(2, 1, {"a": 7.0})
    assert path.read_text() == "step,epoch,lr,a\n1,1,,1\n2,1,,7\n"


def test_rows_without_a_step_are_kept_aside_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.csv"
    old = "step,epoch,lr,a\n1e+06,1,,1\n0.5,1,,2\nnan,1,,2\n1000004,1\n1000008,1,,3\n1000012,1"
    path.write_text(old)
    CsvLog(path, ["a"]).resume(1000008)
    assert path.read_text() == "step,epoch,lr,a\n1e+06,1,,1\n1000008,1,,3\n"
    assert (tmp_path / "metrics.csv.damaged-1").read_text() == old.removesuffix("1000012,1")
    assert "metrics.csv has 3 rows without a step" in capsys.readouterr().err


MakeRun = Callable[..., tuple[Config, RunDir]]


def test_a_table_above_the_limit_of_small_files_has_curves(tmp_path: Path) -> None:
    run, rows = RunDir(tmp_path), 420_000
    with run.metrics_csv.open("w") as file:
        file.write("epoch,step,train/loss,val/loss\n")
        file.writelines(
            f"{n // 1000},{n},{1 / (n + 1):.30f},{2.0 if n % 1000 == 0 else ''}\n" for n in range(rows)
        )
    assert run.metrics_csv.stat().st_size > LARGEST
    curves = facts.curves(run.metrics_csv)
    assert {name: len(points) for name, points in curves.items()} == {"train/loss": rows, "val/loss": 420}
    assert curves["val/loss"][-1] == (419_000, 2.0)
    assert len(facts.metric_values(run, "val/loss")) == 420


def test_best_of_many_runs_reads_no_config(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.yaml takes 100 times as long to parse as a run.json."""
    runs = [make_run()[1] for _ in range(3)]
    for number, run in enumerate(runs):
        run.update(state="completed", monitor="val/acc", mode="max")
        run.metrics_csv.write_text(f"step,val/acc\n1,0.{number}\n2,0.1\n")

    def refuse(run: RunDir) -> None:
        raise AssertionError(f"{run.config} was read")

    monkeypatch.setattr(facts, "read_config", refuse)
    found = find_best([find_runs.read_entry(run.path) for run in runs])
    assert (found.id, found.value) == (runs[2].id, 0.2)

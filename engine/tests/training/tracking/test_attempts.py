"""A stopped and resumed run is one tracked run without a gap, with the real packages."""

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.tests.training.tracking.conftest import Attempt, once
from engine.tests.training.tracking.wandb_log import read_history
from train_anywhere.training.tracking import GuardedLogger, mlflow
from train_anywhere.training.tracking.wandb import STEP

BOTH = "loggers=[wandb,mlflow]"
ID = "20261120-101502-a1b2"


def logged_by_wandb(run: Path, name: str = ID) -> Counter[tuple[str, int]]:
    """Return the points of all attempts, which `wandb sync` sends to one run."""
    rows = [
        row
        for file in run.glob("wandb/offline-run-*/*.wandb")
        if name in file.name
        for row in read_history(file)
    ]
    return Counter((n, int(row[STEP])) for row in rows for n in row if n != STEP and not n.startswith("_"))


def runs_of_mlflow(run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A client of the store, and the runs of all experiments in it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(run / "mlruns").as_uri())
    return client, client.search_runs([e.experiment_id for e in client.search_experiments()])


def logged_by_mlflow(client: Any, run: Any) -> Counter[tuple[str, int]]:
    """All points of the run."""
    names = run.data.metrics
    return Counter((n, p.step) for n in names for p in client.get_metric_history(run.info.run_id, n))


@pytest.mark.slow
def test_a_kill_and_a_resume_are_one_run(attempt, tmp_path, monkeypatch) -> None:
    """Killed at step 30 with the newest checkpoint at 20: ten steps are tracked twice."""
    run = tmp_path / "friedman" / ID
    attempt(run, 1, 30, "killed", BOTH)
    again = Counter((n, s) for n in ("train/loss", "lr") for s in range(21, 31))
    attempt(run, 21, 40, "preempted", BOTH, "optimizer.lr=0.5")
    attempt(run, 41, 60, "completed", BOTH, "optimizer.lr=0.5")
    assert logged_by_wandb(run) == once(60) + again
    client, runs = runs_of_mlflow(run, monkeypatch)
    assert [r.info.run_name for r in runs] == [ID]
    assert runs[0].info.status == "FINISHED"
    assert logged_by_mlflow(client, runs[0]) == once(60) + again
    assert runs[0].data.params["optimizer.lr"] == "0.002"
    assert runs[0].data.tags["optimizer.lr"] == "0.5"  # MLflow keeps the first value of a parameter


@pytest.mark.slow
def test_a_kill_before_anything_is_on_the_disk(attempt: Attempt, tmp_path: Path) -> None:
    """The next attempt logs what W&B had not written yet, although metrics.csv has it."""
    run = tmp_path / ID
    attempt(run, 1, 30, "killed", "loggers=wandb", SETTLE="0")
    attempt(run, 1, 30, "completed", "loggers=wandb")
    assert set(logged_by_wandb(run)) == set(once(30))


@pytest.mark.slow
def test_from_scratch_is_another_run(attempt, tmp_path, monkeypatch) -> None:
    run = tmp_path / ID
    attempt(run, 1, 10, "completed", BOTH)
    (run / "before-1").mkdir()
    shutil.move(run / "metrics.csv", run / "before-1")  # as engine/train_anywhere/runs/reopen/resume.py does
    attempt(run, 1, 10, "completed", BOTH)
    assert logged_by_wandb(run, f"{ID}-2") == once(10)
    client, runs = runs_of_mlflow(run, monkeypatch)
    assert {r.info.run_name for r in runs} == {ID, f"{ID}-2"}
    assert all(logged_by_mlflow(client, r) == once(10) for r in runs)


@pytest.mark.needs_root
@pytest.mark.slow
def test_without_a_network(attempt: Attempt, tmp_path: Path, require: Callable[[object, str], None]) -> None:
    require(os.getuid() == 0, "run as root: the test takes the network away")
    run = tmp_path / ID
    done = attempt(run, 1, 10, "completed", BOTH, wrap=("unshare", "-n"))
    assert done.stderr == ""
    assert logged_by_wandb(run) == once(10)
    assert (run / "mlruns").is_dir()


@pytest.mark.slow
def test_nothing_is_written_outside_of_the_run_folder(attempt: Attempt, tmp_path: Path) -> None:
    run = tmp_path / ID
    attempt(run, 1, 10, "completed", BOTH)
    assert sorted(p.name for p in run.iterdir()) == ["metrics.csv", "mlruns", "wandb"]
    outside = [p for p in tmp_path.rglob("*") if run not in (p, *p.parents) and not p.is_dir()]
    assert outside == []


@pytest.mark.slow
def test_a_secret_stays_in_the_environment(attempt: Attempt, tmp_path: Path) -> None:
    run, key = tmp_path / ID, "5ec2e7" * 7
    attempt(run, 1, 3, "completed", BOTH, "+loggers.wandb.settings.api_key=${oc.env:MY_TOKEN}", MY_TOKEN=key)
    written = b"".join(p.read_bytes() for p in run.rglob("*") if p.is_file())
    assert key.encode() not in written
    assert written.count(b"${oc.env:MY_TOKEN}") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("choice, other", [("wandb", "mlflow"), ("mlflow", "wandb")])
def test_only_what_is_chosen_is_imported(attempt: Attempt, tmp_path: Path, choice: str, other: str) -> None:
    done = attempt(tmp_path / ID, 1, 3, "completed", f"loggers={choice}", PYTHONVERBOSE="1")
    assert f"import '{choice}'" in done.stderr
    assert f"import '{other}'" not in done.stderr


def test_no_tracker_is_imported_unless_chosen(attempt: Attempt, tmp_path: Path) -> None:
    done = attempt(tmp_path / ID, 1, 3, "completed", PYTHONVERBOSE="1")
    assert "import 'train_anywhere.training.tracking'" in done.stderr
    assert "import 'wandb'" not in done.stderr
    assert "import 'mlflow'" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder, name", [("wandb", "wandb"), ("mlruns", "mlflow")])
def test_a_folder_that_can_not_be_written(attempt: Attempt, tmp_path: Path, folder: str, name: str) -> None:
    """One line is printed, and training and the other tracker continue."""
    run = tmp_path / ID
    run.mkdir()
    (run / folder).write_text("in the way")
    done = attempt(run, 1, 10, "completed", BOTH)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"loggers.{name} failed (")
    assert line.endswith("training continues without it.")
    assert (run / "wandb").is_dir() != (run / "mlruns").is_dir()


@pytest.mark.slow
def test_no_server_answers(attempt: Attempt, tmp_path: Path) -> None:
    """W&B without a key tracks in files, MLflow without its server does not, with a line each."""
    run = tmp_path / ID
    uri = "loggers.mlflow.tracking_uri=http://127.0.0.1:9"
    done = attempt(run, 1, 10, "completed", BOTH, "cluster.site.internet=true", uri)
    offline, failed = done.stderr.splitlines()
    assert "No API key configured" in offline
    assert "is tracked offline; `wandb sync" in offline
    assert failed.startswith("loggers.mlflow failed (")
    assert logged_by_wandb(run) == once(10)


@pytest.mark.slow
def test_the_process_of_wandb_dies(attempt: Attempt, tmp_path: Path) -> None:
    run = tmp_path / ID
    done = attempt(run, 1, 10, "completed", "loggers=wandb", KILL_CHILDREN="1")
    (line,) = done.stderr.splitlines()
    assert line.startswith("loggers.wandb failed (")
    assert line.endswith("training continues without it.")
    assert len((run / "metrics.csv").read_text().splitlines()) == 11


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, 500])
def test_the_server_of_mlflow_fails_after_the_start(monkeypatch, capsys, tmp_path, answer) -> None:
    """A server that never answers, and one that refuses: training waits for neither, and one line names the lost rows."""
    monkeypatch.setattr(mlflow, "CLOSE_S", 0.5)
    tracker = mlflow.MLflow("p", folder=str(tmp_path), run_id=ID, internet=False)
    never = threading.Event()

    def log_batch(*_: object, **__: object) -> None:
        if answer:
            raise OSError("no route to host")
        never.wait(20)

    monkeypatch.setattr(tracker.client, "log_batch", log_batch)
    guarded, start = GuardedLogger("mlflow", tracker), time.monotonic()
    for step in range(3):
        guarded.log_metrics({"a": 1.0}, step)
    guarded.finalize("preempted")
    assert time.monotonic() - start < 5
    never.set()
    assert "loggers.mlflow failed (3 rows were not sent, but metrics.csv has them" in capsys.readouterr().err

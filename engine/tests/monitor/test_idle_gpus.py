"""`monitor.idle` on trainings and a program on idle GPUs of a stand-in for nvidia-smi."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import idle_gpus
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.features.idle import IdleWatch
from train_anywhere.features.node import node_name
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import dumps
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]
OFTEN = ("monitor.sample_seconds=0.2", "monitor.tensorboard=false")
ENDLESS = ("model=mlp", "trainer.max_epochs=1000000", "checkpoint.every_n_epochs=1000000", *OFTEN)


def run(tmp_path: Path, program: str, *words: str) -> tuple[int, str, Path]:
    """Run a command on idle GPUs of a stand-in. Return exit code, output and run folder."""
    command = [sys.executable, str(ROOT / "src" / program), f"paths.results={tmp_path / 'results'}", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **idle_gpus(tmp_path, warn=0.01)}
    done = subprocess.run(
        command,
        env=environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, (tmp_path / "results" / "latest").resolve()


def test_a_warning_ends_nothing(tmp_path: Path) -> None:
    words = ("model=mlp", "trainer.max_epochs=1000000", "trainer.max_time=00:00:00:04", *OFTEN)
    code, printed, _ = run(tmp_path, "train.py", *words)
    assert code == 0 and printed.count("have done nothing for 0.01 min") == 1, printed


class Samples:
    """Samples of two nodes and the first node's watch, whose clock the test sets."""

    def __init__(
        self, run: RunDir, config: Config, monkeypatch: pytest.MonkeyPatch, job: str = "SLURM_JOB_ID"
    ) -> None:
        self.run, self.minute = run, 0.0
        environ = {job: "7", "TRAIN_HOSTS": f"{node_name()}:2,other:2"}
        monkeypatch.setenv("TRAIN_HOSTS", environ["TRAIN_HOSTS"])
        self.watch = IdleWatch(run, config, node_name(), environ)

    def take(self, minutes: int, uses: dict[str, list[float | None]]) -> None:
        """Take a sample each minute."""
        for _ in range(minutes):
            self.minute += 1
            for host, values in uses.items():
                self.run.monitor.mkdir(exist_ok=True)
                (self.run.monitor / f"{host}.csv").touch()
                gpus = [{"index": i} for i in range(len(values))]
                sample = {"time": self.minute} | {f"gpu{i}_use_percent": use for i, use in enumerate(values)}
                (self.run.monitor / f"{host}.json").write_text(dumps({"gpus": gpus, "sample": sample}))
            self.watch._add_samples(60 * self.minute)
            self.watch._report()


@pytest.fixture
def samples(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Samples:
    config, run = make_run()
    return Samples(run, config, monkeypatch)


def test_which_gpus_are_idle(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    samples.take(20, {"one": [0, 90], "other": [80, 90]})
    printed = capsys.readouterr().out
    assert printed.startswith(
        "watch: 1 of 4 GPUs (GPU 0 of one) has done nothing for 15 min, and many sites cancel such jobs."
    )
    assert printed.count("\n") == 1
    samples.take(60, {"one": [0, 0], "other": [0, None]})  # one has no reading, so it may be busy
    assert "3 of 4 GPUs" in capsys.readouterr().out
    samples.take(1, {"one": [50, 50], "other": [50, 50]})
    samples.take(14, {"one": [0, 0], "other": [0, 0]})
    assert not capsys.readouterr().out
    samples.take(1, {"one": [0, 0], "other": [0, 0]})
    assert "all 4 GPUs have" in capsys.readouterr().out
    samples.take(60, {"one": [0, 0], "other": [0, 0]})
    assert not capsys.readouterr().out  # one line for each idle time


def test_a_node_without_new_samples_does_not_look_idle(
    samples: Samples, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.take(10, {"one": [0], "other": [0]})
    samples.take(60, {"other": [0]})
    assert "1 of 2 GPUs (GPU 0 of other)" in capsys.readouterr().out


def test_a_time_without_samples_does_not_count(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    """The gap is 45 minutes in which the shared disk did not answer."""
    samples.take(10, {"one": [0], "other": [0]})
    samples.minute += 45
    samples.take(15, {"one": [0], "other": [0]})
    assert not capsys.readouterr().out
    samples.take(1, {"one": [0], "other": [0]})
    assert "all 2 GPUs have" in capsys.readouterr().out


def test_the_first_node_of_a_pbs_job_reports_only_its_gpus(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = make_run()
    Samples(run, config, monkeypatch, "PBS_JOBID").take(50, {"one": [0, 0]})
    assert "all 2 GPUs of the first node have done nothing for 15 min" in capsys.readouterr().out


def test_the_start_of_a_training_does_not_count(samples: Samples) -> None:
    """Until then its GPUs wait for imports and data."""
    rank = Heartbeat()
    rank.open(samples.run, Topology())
    samples.take(1, {"one": [0]})
    samples.watch._spans.clear()
    for minute, section in enumerate(("start", "step"), 2):
        rank.enter(section)
        sample = {"gpus": [{"index": 0}], "sample": {"time": minute, "gpu0_use_percent": 0}}
        (samples.run.monitor / "one.json").write_text(dumps(sample))
        samples.watch.poll(0.0)
        assert len(samples.watch._spans) == (section == "step")
    rank.close()

"""`monitor.idle` on trainings and a program on idle GPUs of a stand-in for nvidia-smi."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import idle_gpus
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import STOPPED, ConfigError
from train_anywhere.features import problems
from train_anywhere.features.idle.idle_gpus import IdleWatch
from train_anywhere.features.node import node_name
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import dumps
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.attempts import request_stop, stop_request, was_killed
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.testing.weights import info

MakeRun = Callable[..., tuple[Config, RunDir]]
OFTEN = ("monitor.sample_seconds=0.2", "monitor.tensorboard=false")
ENDLESS = ("model=mlp", "trainer.max_epochs=1000000", "checkpoint.every_n_epochs=1000000", *OFTEN)
REASON = "all GPUs did nothing for 0 min (monitor.idle=stop)"

HANDLES = """
import os, signal, sys, time
from pathlib import Path
def stop(*_):
    Path(os.environ["TRAIN_RUN"], f"saved-{os.environ.get('RANK', '0')}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(100)
"""


def run(tmp_path: Path, program: str, *words: str, stop: float = 0.06) -> tuple[int, str, Path]:
    """Run a command on idle GPUs of a stand-in. Return exit code, output and run folder."""
    command = [sys.executable, str(ROOT / "src" / program), f"paths.results={tmp_path / 'results'}", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **idle_gpus(tmp_path, warn=0.01, stop=stop)}
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


def status(tmp_path: Path) -> str:
    command = [sys.executable, str(ROOT / "src/jobs.py"), "status", "--results", str(tmp_path / "results")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("framework=lightning", "trainer.devices=2"),
        pytest.param(("framework=keras", "trainer.devices=2", "strategy=horovod"), marks=pytest.mark.slow),
    ],
    ids=["lightning", "keras"],
)
def test_a_training_gives_idle_gpus_back_with_a_checkpoint(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, printed, folder = run(tmp_path, "train.py", *ENDLESS, "monitor.idle=stop", *words)
    assert code == STOPPED, printed
    assert printed.count("watch: all 2 GPUs have done nothing for 0.01 min. `python src/jobs.py debug") == 1
    assert printed.count(f"watch: {REASON}: the run saves a checkpoint and ends") == 1
    assert "by monitor.idle=stop in epoch" in printed
    found = info(folder)
    assert (found["attempts"][-1]["ended_by"], found["attempts"][-1]["reason"]) == ("idle", REASON)
    assert (folder / "checkpoints" / f"{found['step']:08d}" / "manifest.json").is_file()
    shown = status(tmp_path)
    assert "interrupted" in shown and f"Why:         {REASON}" in shown


@pytest.mark.parametrize("devices", [1, 2])
def test_a_program_gets_the_signal(tmp_path: Path, devices: int) -> None:
    path = ROOT / "examples" / "programs" / f"handles_{os.getpid()}.py"
    path.write_text(HANDLES)
    try:
        words = (f"trainer.devices={devices}", "monitor.sample_seconds=0.2", "monitor.idle=stop")
        code, printed, folder = run(tmp_path, "run.py", *words, "--", str(path.relative_to(ROOT)), stop=0.1)
    finally:
        path.unlink()
    assert code == STOPPED, printed
    assert {path.name for path in folder.glob("saved-*")} == {f"saved-{r}" for r in range(devices)}
    assert info(folder)["attempts"][-1]["reason"] == REASON


def test_a_warning_ends_nothing(tmp_path: Path) -> None:
    words = ("model=mlp", "trainer.max_epochs=1000000", "trainer.max_time=00:00:00:04", *OFTEN)
    code, printed, _ = run(tmp_path, "train.py", *words, stop=0.011)
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
            self.watch._judge()


@pytest.fixture
def samples(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Samples:
    config, run = make_run("monitor.idle=stop")
    return Samples(run, config, monkeypatch)


def test_which_gpus_are_idle(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    samples.take(20, {"one": [0, 90], "other": [80, 90]})
    printed = capsys.readouterr().out
    assert printed.startswith(
        "watch: 1 of 4 GPUs (GPU 0 of one) has done nothing for 15 min, and many sites cancel such jobs."
    )
    assert printed.count("\n") == 1
    samples.take(60, {"one": [0, 0], "other": [0, None]})  # one has no reading, so it may be busy
    assert "3 of 4 GPUs" in capsys.readouterr().out and not stop_request(samples.run)
    samples.take(1, {"one": [50, 50], "other": [50, 50]})
    samples.take(44, {"one": [0, 0], "other": [0, 0]})
    assert "all 4 GPUs have" in capsys.readouterr().out and not stop_request(samples.run)
    samples.take(1, {"one": [0, 0], "other": [0, 0]})
    assert stop_request(samples.run, "7/0") == "all GPUs did nothing for 45 min (monitor.idle=stop)"
    assert stop_request(samples.run, "7/1") == ""


def test_a_node_without_new_samples_does_not_look_idle(samples: Samples) -> None:
    samples.take(10, {"one": [0], "other": [0]})
    samples.take(60, {"other": [0]})
    assert not stop_request(samples.run)


def test_a_time_without_samples_does_not_count(samples: Samples) -> None:
    """The gap is 45 minutes in which the shared disk did not answer."""
    samples.take(10, {"one": [0], "other": [0]})
    samples.minute += 45
    samples.take(40, {"one": [0], "other": [0]})
    assert not stop_request(samples.run)
    samples.take(6, {"one": [0], "other": [0]})
    assert stop_request(samples.run)


@pytest.mark.parametrize("program", [True, False], ids=["program", "training"])
def test_the_first_node_of_a_pbs_job_can_not_stop_a_program_on_others(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: bool
) -> None:
    words = ["program.command=[examples/programs/main.py]"] if program else []
    config, run = make_run("monitor.idle=stop", *words)
    Samples(run, config, monkeypatch, "PBS_JOBID").take(50, {"one": [0, 0]})
    assert "all 2 GPUs of the first node have done nothing for 15 min" in capsys.readouterr().out
    assert bool(stop_request(run)) != program


NEVER_ENDS = """
import signal, sys, time
from pathlib import Path
from train_anywhere.distributed.topology import Topology
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
own = Heartbeat()
own.open(RunDir(Path(sys.argv[1])), Topology())
own.enter("step", "data")
own.trained_batch(7)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
"""A rank that waits for data for ever: it hears the signal, but never comes to the end of a batch."""


def test_ranks_that_do_not_end_are_killed(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    config, run = make_run("monitor.idle=stop", "cluster.signal_seconds=900")
    RunRecorder(run).record_start(1, {})
    run.monitor.mkdir(exist_ok=True)
    first, other = IdleWatch(run, config, node_name(), {}), IdleWatch(run, config, "other", {})
    other.first = False
    assert first.patience == 900
    command = [sys.executable, "-c", NEVER_ENDS, str(run.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout and rank.stdout.readline() == "ready\n"
            request_stop(run, "local/0", REASON)
            for watch in (first, other, first, other):
                watch.poll(0.0)
            assert rank.stdout.readline() == "asked\n" and rank.poll() is None
            first.patience = other.patience = 0
            other.poll(0.0)
            assert rank.poll() is None  # the first node has to record it before
            first.poll(0.0)
            assert rank.wait(20) == -signal.SIGKILL
        finally:
            rank.kill()
    assert "did not end within 0 min, so they are killed" in capsys.readouterr().out
    newest = run.read_info()["attempts"][-1]
    assert (run.read_info()["state"], newest["ended_by"], newest["reason"], newest["step"]) == (
        "preempted",
        "idle",
        REASON,
        7,
    )
    assert was_killed(run, "local/0")


@pytest.mark.parametrize("seconds", ["null", "300"])
def test_what_can_not_work_is_refused(make_config: Callable[..., Config], seconds: str) -> None:
    config = make_config("monitor.idle=stop", f"monitor.sample_seconds={seconds}")
    assert problems(config, "any") == [
        "monitor.idle=stop needs samples of the GPUs at least every 60 s; set monitor.sample_seconds=10 "
        f"(now {seconds}), or monitor.idle=warn."
    ]
    assert not problems(make_config("monitor.sample_seconds=300"), "any")
    with pytest.raises(ConfigError, match=r"monitor\.idle"):
        make_config("monitor.idle=end")


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

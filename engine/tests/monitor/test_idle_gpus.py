"""`monitor.idle` on trainings and a program on idle GPUs of a stand-in for nvidia-smi."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import idle_gpus
from tools.testing.processes import start_python
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.features.sampler import Gpu, IdleWatch, SampleNodes, Sampler
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]


def test_a_warning_ends_nothing(tmp_path: Path) -> None:
    """The training continues until it is stopped, and says it once."""
    words = ["model=mlp", "trainer.max_epochs=1000000", "monitor.sample_seconds=0.2"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **idle_gpus(tmp_path, warn=0.01)}
    with start_python("-u", "src/train.py", f"paths.results={tmp_path}", *words, env=environ) as process:
        printed = ""
        for line in process.stdout or ():
            if "have done nothing for 0.01 min" in line:
                process.send_signal(signal.SIGTERM)
            printed += line
    assert process.returncode == 75 and printed.count("have done nothing for 0.01 min") == 1, printed


class Samples:
    """Samplers of nodes whose ranks train, and their watch."""

    def __init__(self, run: RunDir, config: Config) -> None:
        self.run, self.config, self.minute, self.rank = run, config, 0, Heartbeat()
        self.rank.open(run, Topology())
        self.rank.enter("step")
        self.watch, self.samplers = IdleWatch(run, "one", ["one"]), dict[str, Sampler]()

    def take(self, minutes: int, *uses: float | None, hosts: tuple[str, ...] = ("one",)) -> None:
        """Take a sample of each host each minute."""
        for _ in range(minutes):
            self.minute += 1
            for late, host in enumerate(hosts):
                if host not in self.samplers:
                    self.samplers[host] = Sampler(self.run, self.config.monitor, 1, host)
                sampler = self.samplers[host]
                sampler.machine.sample = dict  # type: ignore[assignment]
                sampler.read_gpus = lambda: [Gpu(i, "", "", use_percent=use) for i, use in enumerate(uses)]
                sampler.poll(60.0 * self.minute + late)
            self.watch.poll(60.0 * self.minute)


@pytest.fixture
def samples(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Samples]:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    config, run = make_run()
    made = Samples(run, config)
    yield made
    made.rank.close()


def test_which_gpus_are_idle(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    samples.take(20, 0, 90, 80)
    printed = capsys.readouterr().out
    says = "watch: 1 of 3 GPUs (0) of one has done nothing for 15 min, and many sites cancel such jobs."
    assert printed.startswith(says) and printed.count("\n") == 1
    samples.take(60, 0, 0, None)  # one has no reading, so it may be busy
    assert "2 of 3 GPUs (0, 1) of one have" in capsys.readouterr().out
    samples.take(1, 50, 50, 50)
    samples.take(15, 0, 0, 0)
    assert not capsys.readouterr().out
    samples.take(1, 0, 0, 0)
    assert "all 3 GPUs of one have" in capsys.readouterr().out
    samples.take(60, 0, 0, 0)
    assert not capsys.readouterr().out  # one line for each idle time


def test_times_without_samples_and_the_start_of_a_training_do_not_count(samples, capsys):
    """The gap is 45 minutes in which the shared disk did not answer."""
    samples.rank.enter("start")
    samples.take(20, 0, 0)
    samples.rank.enter("step")
    samples.take(10, 0, 0)
    samples.minute += 45
    samples.take(15, 0, 0)
    assert not capsys.readouterr().out
    samples.take(1, 0, 0)
    assert "all 2 GPUs of one have" in capsys.readouterr().out


def test_the_gpus_of_many_nodes_are_one_line(
    samples: Samples, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their samples are of different times. Another node prints nothing."""
    hosts = tuple(f"gpu{n:02}" for n in range(1, 32))
    samples.watch = IdleWatch(samples.run, "one", hosts)
    samples.take(20, 0, 0, hosts=(*hosts, "of-an-earlier-attempt"))
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and "watch: all 2 GPUs of gpu[01-31] have done nothing" in printed
    monkeypatch.setenv("TRAIN_HOSTS", ",".join(f"{host}:2" for host in hosts))
    feature = SampleNodes()
    feature.config = samples.config
    assert [len(feature.node_services(samples.run, host)) for host in hosts[:3]] == [2, 1, 1]

"""Real side processes, started on a run folder as the batch script does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tools.testing.processes import start_python, wait_until
from train_anywhere.config.schema import Config
from train_anywhere.features import Features
from train_anywhere.features.node import NICE, make_services, node_name, run_services
from train_anywhere.files import ROOT
from train_anywhere.launch.processes import run_monitor
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]
OFTEN = ("monitor.sample_seconds=0.2", "monitor.tensorboard=false")


def command(run: RunDir, *more: str) -> list[str]:
    return [sys.executable, "-m", "train_anywhere.features.node", str(run.path), *more]


@pytest.fixture
def side(make_run: MakeRun) -> Iterator[tuple[RunDir, "subprocess.Popen[bytes]"]]:
    """A side process at work, with a pipe as its input."""
    pipe = subprocess.PIPE
    _, run = make_run(*OFTEN)
    with subprocess.Popen(command(run), cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        wait_until(lambda: lines(run) > 2)
        yield run, process
        process.kill()


def lines(run: RunDir) -> int:
    table = run.monitor / f"{node_name()}.csv"
    return len(table.read_text().splitlines()) if table.exists() else 0


def test_it_writes_on_at_low_priority(side: tuple[RunDir, "subprocess.Popen[bytes]"]) -> None:
    run, process = side
    before = lines(run)
    wait_until(lambda: lines(run) > before + 2)
    assert psutil.Process(process.pid).nice() == min(19, os.nice(0) + NICE)


def test_it_ends_with_its_input(side: tuple[RunDir, "subprocess.Popen[bytes]"]) -> None:
    _, process = side
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_it_ends_at_sigterm_and_at_no_other_signal_of_a_job(side):
    run, process = side
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    before = lines(run)
    wait_until(lambda: lines(run) > before + 1)
    process.terminate()
    process.wait(timeout=30)  # its input is still open
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


def test_it_ends_when_its_parent_is_gone(make_run: MakeRun) -> None:
    """Its input stays open: another process holds it too."""
    _, run = make_run(*OFTEN)
    read, write = os.pipe()
    script = (
        f"import subprocess; print(subprocess.Popen({command(run)!r}, stdin={read}).pid, flush=True); input()"
    )
    with start_python("-c", script, pass_fds=[read], stdin=subprocess.PIPE, stderr=None) as parent:
        assert parent.stdout
        side = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: lines(run) > 1)
        parent.kill()
    wait_until(lambda: not side.is_running() or side.status() == psutil.STATUS_ZOMBIE)
    os.close(read)
    os.close(write)


def test_a_parent_that_ended_before_is_noticed(make_run: MakeRun) -> None:
    _, run = make_run(*OFTEN)
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(command(run, str(gone.pid)), cwd=ROOT, stdin=subprocess.PIPE, timeout=60)
    assert done.returncode == 0


def test_what_it_can_t_read_ends_it_in_silence(tmp_path: Path) -> None:
    done = subprocess.run(
        command(RunDir(tmp_path)), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_without_psutil_the_rest_goes_on(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose image does not have it."""
    monkeypatch.delitem(sys.modules, "train_anywhere.features.sampler", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    config, run = make_run(*OFTEN)
    services = make_services(run, Features.of(config))
    assert [type(service).__name__ for service in services] == ["Watch", "IdleWatch"]
    assert "psutil" in (run.monitor / f"trouble-{node_name()}.txt").read_text()


def test_it_starts_without_a_framework(make_run: MakeRun) -> None:
    _, run = make_run(*OFTEN)
    words = [sys.executable, "-X", "importtime", *command(run)[1:]]
    done = subprocess.run(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "psutil" in loaded
    assert not loaded & {
        "torch",
        "tensorflow",
        "lightning",
        "keras",
        "numpy",
        "scipy",
        "hydra",
        "tensorboard",
    }


class Service:
    """A node service that calls a function and counts the calls."""

    every_seconds = 0.01

    def __init__(self, do: Callable[[], object]) -> None:
        self.do, self.polls, self.closed = do, 0, False

    def poll(self, now: float) -> None:
        assert abs(now - time.time()) < 60
        self.polls += 1
        self.do()

    def close(self) -> None:
        self.closed = True


def fail(error: Exception) -> None:
    raise error


def test_a_service_that_fails_or_hangs_leaves_the_others(make_run):
    """A refusing disk is tried again, a bug ends its service, a hanging driver delays nothing."""
    _, run = make_run()
    trouble = run.monitor / f"trouble-{node_name()}.txt"
    good, refused = Service(lambda: None), Service(lambda: fail(OSError("no space")))
    broken, stuck = Service(lambda: fail(ValueError("a bug"))), Service(lambda: time.sleep(600))

    def done() -> bool:
        time.sleep(0.01)
        return good.polls > 9 and refused.polls > 2 and broken.polls + stuck.polls == 2 and trouble.exists()

    run_services([broken, stuck, refused, good], done, run)
    assert (broken.polls, stuck.polls) == (1, 1)
    assert all(service.closed for service in (good, refused, broken, stuck))
    assert "ValueError: a bug" in trouble.read_text()


@pytest.mark.filterwarnings("ignore:.* is called poll now:FutureWarning")
@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.quick("False")
def test_a_run_here_has_one_and_ends_it(make_run: MakeRun, stuck: bool) -> None:
    config, run = make_run(*OFTEN)
    with run_monitor(run, config):
        wait_until(lambda: lines(run) > 1)
        for side in [
            c for c in psutil.Process().children() if stuck and "train_anywhere.features.node" in c.cmdline()
        ]:
            side.suspend()
    assert [c for c in psutil.Process().children() if "train_anywhere.features.node" in c.cmdline()] == []


@pytest.mark.parametrize(
    "overrides", [["monitor.sample_seconds=null", "monitor.hang_minutes=null"], ["trainer.fast_dev_run=true"]]
)
def test_a_run_that_wants_none_has_none(make_run: MakeRun, overrides: list[str]) -> None:
    config, run = make_run(*overrides)
    with run_monitor(run, config):
        assert [c for c in psutil.Process().children() if "train_anywhere.features.node" in c.cmdline()] == []

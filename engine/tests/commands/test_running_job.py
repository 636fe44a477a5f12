"""`jobs.py save`, `debug` and `shell` on real trainings of two ranks on this machine."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tools.testing.processes import start_python, wait_until
from train_anywhere.commands.jobs import main
from train_anywhere.files import ROOT
from train_anywhere.monitor import live
from train_anywhere.monitor.live import read_profiles, write
from train_anywhere.runs.folder import RunDir

Train = Callable[..., "CompletedProcess[str]"]
NO_OTHER = ("checkpoint.every_n_epochs=1000000", "trainer.log_every_n_steps=5")
"""No checkpoint is written unless it is requested."""
RANKS = {
    "lightning": ("framework=lightning", "trainer.devices=2"),
    "keras": ("framework=keras", "trainer.devices=2", "strategy=horovod"),
}


def start(results: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a training that ends only when it is stopped, and wait until it trains."""
    size = (
        "model=mlp", "trainer.max_epochs=1000000", "monitor.tensorboard=false", f"paths.results={results}",
    )  # fmt: skip
    more = {"stderr": subprocess.STDOUT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    process = start_python(ROOT / "src/train.py", *size, *NO_OTHER, *words, **more)
    live = results / "latest" / "monitor" / "live.json"
    wait_until(lambda: live.exists() and json.loads(live.read_text()).get("step"), process)
    return process


@pytest.fixture(params=[pytest.param("lightning"), pytest.param("keras", marks=pytest.mark.slow)])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> "Iterator[subprocess.Popen[str]]":
    """A training of two ranks in `tmp_path / "results"`."""
    process = start(tmp_path / "results", *RANKS[request.param])
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)


def test_a_run_saves_shows_its_stacks_and_stops(running, tmp_path, capsys, train):
    results = tmp_path / "results"

    def jobs(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--results", str(results)])
        return code, *capsys.readouterr()

    run = (results / "latest").resolve()
    code, out, err = jobs("save")
    saved = Path(out.strip())
    assert code == 0 and (saved / "manifest.json").is_file(), err
    # a second request is answered by a later checkpoint, also while a stale request lies there
    write(run / "monitor" / live.SAVE, {"id": "left by a killed command"})
    code, out, err = jobs("save", run.name)
    assert code == 0 and int(Path(out.strip()).name) > int(saved.name), err
    assert running.poll() is None

    code, out, err = jobs("debug")
    assert code == 0 and err == ""
    ranks = out.split("---- ")[1:]
    assert [part.split()[1:3] for part in ranks] == [["rank", "0"], ["rank", "1"]]
    for part in ranks:
        assert part.startswith(f"{run.name}: rank ") and "src/train.py" in part and " steps done" in part
    assert jobs("debug", "--rank", "1")[1].count("---- ") == 1
    assert jobs("debug", "--rank", "2")[0] == 2
    code, _, err = jobs("shell")
    assert (
        code == 2
        and f"it runs without a job, as process {json.loads((run / 'lock').read_text())['pid']} on" in err
    )

    code, out, err = jobs("save", "--stop")
    assert code == 0 and "saves a checkpoint and stops" in out, err
    running.wait(timeout=120)
    assert running.returncode == 75
    newest = int((run / "checkpoints" / "newest").read_text())
    assert newest >= int(Path(out.splitlines()[0]).name)
    info = json.loads((run / "run.json").read_text())
    assert (info["state"], info["step"]) == ("preempted", newest)

    for verb in ("save", "debug", "shell"):
        code, _, err = jobs(verb)
        assert (
            code == 2
            and f"{run.name}: it ran on this machine and is preempted; only a run that is running can" in err
        )
    done = train(f"resume={run}", f"trainer.max_steps={newest + 1}")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "run.json").read_text())["attempts"][-1]["from_step"] == newest


@pytest.mark.slow
def test_what_can_not_be_answered_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    process = start(results, "monitor.hang_minutes=null", "trainer.log_every_n_steps=1000000")
    try:
        assert main(["debug", "--results", str(results)]) == 2
        assert "this run has monitor.hang_minutes=null" in capsys.readouterr().err
        os.kill(process.pid, signal.SIGSTOP)
        assert main(["save", "--timeout", "2", "--results", str(results)]) == 2
        assert "it saved nothing within 2 s" in capsys.readouterr().err
        assert live.read_id(results / "latest" / "monitor" / live.SAVE) == ""  # withdrawn
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 75


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_a_running_job_is_profiled(framework, tmp_path, capsys):
    results = tmp_path / "results"
    process = start(results, *RANKS[framework])
    try:
        assert main(["profile", "--steps", "4", "--ranks", "0,1", "--results", str(results)]) == 0
        out = capsys.readouterr().out
        assert process.poll() is None
        for text in ("0,2", "0,x"):
            assert main(["profile", "--ranks", text, "--results", str(results)]) == 2
            assert f"--ranks={text} " in capsys.readouterr().err
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    run = (results / "latest").resolve()
    first = set()
    for number in (0, 1):
        found = read_profiles(RunDir(run))[number]
        assert len(found.operations) == 10
        assert found.last - found.first >= 3
        first.add(found.first)
        assert f"rank {number}, steps {found.first}-{found.last}:" in out
    assert len(first) == 1  # all ranks start after the same step
    name = "addmm" if framework == "lightning" else "MatMul"
    traces = [*(run / "profile").rglob("*.pt.trace.json"), *(run / "profile").rglob("*.xplane.pb")]
    assert len(traces) == 2
    for trace in traces:
        assert name.encode() in trace.read_bytes()
    page = (run / "report.html").read_text()
    assert all(f"Slowest operations of rank {number} in steps" in page for number in (0, 1))


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_a_profile_changes_no_results(framework: str, train: Train, tmp_path: Path) -> None:
    curves = []
    for steps in ("null", "14-15"):
        words = (
            f"framework={framework}",
            f"trainer.profiler={steps}",
            "trainer.log_every_n_steps=4",  # Keras makes up to 4 steps in a call
            "model=mlp",
        )
        done = train(
            *words, "trainer.max_steps=18", f"paths.results={tmp_path}/{steps}", "monitor.tensorboard=false"
        )
        assert done.returncode == 0, done.stderr
        curves.append((tmp_path / steps / "latest" / "metrics.csv").read_text())
        run = RunDir((tmp_path / steps / "latest").resolve())
        profiled = [(one.first, one.last) for one in read_profiles(run)]
        assert profiled == ([] if steps == "null" else [(14, 15)])
    assert curves[0] == curves[1]
